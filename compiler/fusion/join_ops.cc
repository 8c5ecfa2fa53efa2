#include "compiler/fusion/join_ops.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/fusion/cost.h"
#include "compiler/fusion/join_kernels.h"
#include "compiler/fusion/match_loops.h"
#include "compiler/fusion/merge_phases.h"
#include "compiler/fusion/simplify_kernel.h"
#include "compiler/fusion/strides.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::ScalarOp;
using ir::Schedule;

namespace {

// A pointwise kernel of this many points must not end up inside fewer outer points than
// kMinParallelPoints, for only those run in parallel.
constexpr double kMinParallelPoints = 64;
constexpr double kMaxSerialPoints = 16384;
// But for rows that a GPU's block of threads takes in less time than another launch.
constexpr double kMaxLaunchPoints = 1 << 14;
constexpr size_t kMaxSites = 4;  // accesses of one buffer to try
// From here on a buffer that is stored column by column costs more than one that is read again: a
// task leaves each row after a vector. Of 1024x768 floats 0.54 ms against 0.21, of 128x768 0.037
// against 0.050 (two cores of a Zen 5).
constexpr double kMaxColumnBytes = 1 << 20;

std::vector<AccessSite> SitesOf(const Kernel& kernel, BufferId buffer, ScalarOp op) {
  std::vector<AccessSite> sites;
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    for (const Inst& inst : kernel.phases[p].body) {
      if (inst.op == op && inst.buffer == buffer && sites.size() < kMaxSites) {
        sites.push_back({&kernel, p, &inst});
      }
    }
  }
  return sites;
}

// Whether the innermost loop walks the buffer's last dimension.
bool WalksContiguously(const AccessSite& site) {
  const std::vector<IntExpr>& inner = site.kernel->phases[site.phase].inner;
  const std::vector<IntExpr>& loops = inner.empty() ? site.kernel->outer : inner;
  return loops.empty() || site.inst->indices.empty() ||
         ContainsVar(site.inst->indices.back(), loops.back());
}

// Whether `guest`, whose points become iterations of the host's reduction, stores a large buffer
// that someone else reads, and the reduction goes down its columns.
bool StoresDownColumns(FusionGraph& graph, const AccessSite& host, const AccessSite& guest,
                       int other) {
  if (IsPointwise(*host.kernel) || WalksContiguously(host)) return false;
  bool stores = false;
  ForEachInst(*guest.kernel, [&](const Inst& inst) {
    if (inst.op != ScalarOp::kStore) return;
    const std::vector<int> readers = graph.ReadersOf(inst.buffer);
    const bool stays = graph.IsKept(inst.buffer) || readers != std::vector<int>{other};
    stores |= stays && BufferBytes(graph.module(), inst.buffer) >= kMaxColumnBytes;
  });
  return stores;
}

// Why the match would slow things down; empty where it would not.
absl::string_view Objection(FusionGraph& graph, const AccessSite& host, const AccessSite& guest,
                            int second, const LoopMatch& match) {
  const bool both_pointwise = IsPointwise(*host.kernel) && IsPointwise(*guest.kernel);
  if (host.kernel->schedule == Schedule::kContraction && !match.inner.empty()) {
    return "the consumer has more points than the contraction";
  }
  if (!match.inner.empty()) {
    const double tasks = Points(graph.ints(), host.kernel->outer);
    const double points = Points(graph.ints(), guest.kernel->outer);
    const bool is_worth_launch = graph.costly_launches() && points / tasks <= kMaxLaunchPoints;
    if (tasks < kMinParallelPoints && points >= kMaxSerialPoints && !is_worth_launch) {
      return "too few points would run in parallel";
    }
    if (StoresDownColumns(graph, host, guest, second)) {
      return "the consumer goes down the columns of what must be stored";
    }
    // The loops that move inside were among the guest's own: both are pointwise.
    const std::vector<IntExpr>& outer = guest.kernel->outer;
    if (both_pointwise &&
        !EqualExtents(match.inner, {outer.end() - match.inner.size(), outer.end()})) {
      return "memory would be walked out of order";
    }
  }
  if (both_pointwise && WalksContiguously(host) != WalksContiguously(guest)) {
    return "the kernels walk memory in different orders";
  }
  return "";
}

class Joiner {
 public:
  Joiner(FusionGraph& graph, int first, int second)
      : graph_(graph),
        first_id_(first),
        second_id_(second),
        first_(*graph.Fusible(first)),
        second_(*graph.Fusible(second)) {}

  absl::string_view RunUnrelated() {
    if (!EqualExtents(first_.outer, second_.outer)) return kOtherLoops;
    const absl::string_view obstacle = Obstacle();
    if (!obstacle.empty()) return obstacle;
    return Join(/*first_is_host=*/true, {RenameLoops(second_.outer, first_.outer), {}});
  }

  absl::string_view Run(BufferId buffer) {
    if (second_.schedule == Schedule::kContraction) return "a contraction takes no prologue";
    if (first_.schedule == Schedule::kContraction && !IsPointwise(second_)) {
      return "a contraction takes pointwise epilogues only";
    }
    const absl::string_view obstacle = Obstacle();
    if (!obstacle.empty()) return obstacle;
    for (const bool first_is_host : HostOrder()) {
      if (Match(buffer, first_is_host)) return "";
    }
    return objection_.empty() ? kOtherLoops : objection_;
  }

 private:
  static constexpr absl::string_view kOtherLoops = "the loops do not correspond";

  // What forbids every way to join them; empty where nothing does.
  absl::string_view Obstacle() const {
    if (!FitsTogether(first_, second_)) return "the kernels together are too large";
    if (!graph_.CanJoin(first_id_, second_id_)) return "another operation must run between them";
    return "";
  }

  // Which kernel's loops to keep, the better choice first: reductions', else the finer ones.
  std::vector<bool> HostOrder() const {
    if (first_.schedule == Schedule::kContraction) return {true};
    const bool first_loops = !IsPointwise(first_), second_loops = !IsPointwise(second_);
    if (first_loops != second_loops) return {first_loops};
    const bool first_is_finer = first_.outer.size() > second_.outer.size();
    return {first_is_finer, !first_is_finer};
  }

  bool Match(BufferId buffer, bool first_is_host) {
    const std::vector<BufferId>& writes = graph_.op(first_id_).writes;
    const bool stores = std::binary_search(writes.begin(), writes.end(), buffer);
    const auto first_sites = SitesOf(first_, buffer, stores ? ScalarOp::kStore : ScalarOp::kLoad);
    const auto second_sites = SitesOf(second_, buffer, ScalarOp::kLoad);
    for (const AccessSite& a : first_sites) {
      for (const AccessSite& b : second_sites) {
        const AccessSite& host = first_is_host ? a : b;
        const AccessSite& guest = first_is_host ? b : a;
        const std::optional<LoopMatch> match = MatchLoops(graph_.module(), host, guest);
        if (!match) continue;
        const absl::string_view objection = Objection(graph_, host, guest, second_id_, *match);
        if (!objection.empty()) {
          objection_ = objection;
          continue;
        }
        objection_ = Join(first_is_host, *match);
        if (objection_.empty()) return true;
      }
    }
    return false;
  }

  // Why this match will not do; empty where `second` stands for both now.
  absl::string_view Join(bool first_is_host, const LoopMatch& match) {
    std::optional<Kernel> joined =
        JoinKernels(graph_.module(), first_, second_, first_is_host, match);
    if (!joined) return "one would read what another outer point stores";
    if (AreIndicesTooLong(*joined, first_, second_)) return kLongIndices;
    if (WouldCrossRows(graph_, *joined, {&first_, &second_})) return kCrossedRows;
    Commit(*std::move(joined));
    return "";
  }

  void Commit(Kernel joined) {
    MergePhases(graph_.module(), joined);
    graph_.Join(first_id_, second_id_, std::move(joined));
    Kernel& kernel = *graph_.Fusible(second_id_);
    DropPrivateStores(graph_.module(), kernel,
                      [&](BufferId b) { return graph_.IsPrivateTo(second_id_, b); });
    SimplifyKernel(kernel);
    graph_.Update(second_id_);
  }

  FusionGraph& graph_;
  int first_id_, second_id_;
  const Kernel& first_;
  const Kernel& second_;
  absl::string_view objection_;
};

}  // namespace

absl::string_view TryJoin(FusionGraph& graph, int first, int second, BufferId buffer) {
  return Joiner(graph, first, second).Run(buffer);
}

absl::string_view TryJoinUnrelated(FusionGraph& graph, int first, int second) {
  return Joiner(graph, first, second).RunUnrelated();
}

}  // namespace kiln::fusion
