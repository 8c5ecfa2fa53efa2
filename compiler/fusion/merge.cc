// Greedy merging: the pair that saves most memory traffic first, until no pair is left.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/fusion/join_ops.h"
#include "compiler/fusion/passes.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::IntExpr;
using ir::Kernel;

namespace {

constexpr int kMaxRounds = 10;
constexpr size_t kMaxSiblings = 8;                // earlier readers of a buffer to pair with
constexpr int kMaxDistance = 64;                  // operations between siblings
constexpr int kMaxLaunchDistance = 1024;          // between small ones that share nothing
constexpr double kMinSharedBytes = 4096;          // to join siblings of which one reduces
constexpr double kMinPointwiseShared = 65536;     // to join pointwise siblings
constexpr double kMostLaunchPoints = 1 << 22;     // of kernels that a launch costs much beside
constexpr double kMostSerialLaunchPoints = 4096;  // of those that one block runs

struct Pair {
  double saved_bytes;
  int first, second;
  BufferId buffer;
  bool is_vertical;
};

bool IsContraction(const Kernel& kernel) {
  return kernel.schedule == ir::Schedule::kContraction;
}

// Which pairs a pass looks for.
using Accepts =
    std::function<bool(const Kernel& first, const Kernel& second, double bytes, bool is_vertical)>;

class Merger {
 public:
  Merger(FusionGraph& graph, Accepts accepts) : graph_(graph), accepts_(std::move(accepts)) {}

  void Run() {
    bool changed = true;
    for (int round = 0; round < kMaxRounds && changed; ++round) {
      changed = false;
      for (const Pair& pair : CollectPairs()) changed |= Try(pair);
    }
  }

 private:
  std::vector<Pair> CollectPairs() {
    std::vector<Pair> pairs;
    for (int id : graph_.order()) {
      if (graph_.Fusible(id) == nullptr) continue;
      for (BufferId buffer : graph_.op(id).reads) AddPairs(id, buffer, pairs);
    }
    const auto rank = [&](const Pair& p) {
      return std::tuple(-p.saved_bytes, graph_.op(p.second).position, graph_.op(p.first).position,
                        p.buffer);
    };
    std::sort(pairs.begin(), pairs.end(),
              [&](const Pair& a, const Pair& b) { return rank(a) < rank(b); });
    return pairs;
  }

  void AddPairs(int second, BufferId buffer, std::vector<Pair>& pairs) {
    const double bytes = BufferBytes(graph_.module(), buffer);
    const int producer = graph_.ProducerOf(buffer);
    const std::vector<int> readers = graph_.ReadersOf(buffer);
    if (producer >= 0) {
      const bool dies = !graph_.IsKept(buffer) && readers.size() == 1;
      Add({dies ? 2 * bytes : bytes, producer, second, buffer, true}, bytes, pairs);
    }
    const auto at = std::find(readers.begin(), readers.end(), second);
    const size_t number = at - readers.begin();
    for (size_t i = number; i-- > 0 && number - i <= kMaxSiblings;) {
      const int distance = graph_.op(second).position - graph_.op(readers[i]).position;
      if (distance > kMaxDistance) break;
      Add({bytes, readers[i], second, buffer, false}, bytes, pairs);
    }
  }

  void Add(const Pair& pair, double bytes, std::vector<Pair>& pairs) {
    const Kernel* first = graph_.Fusible(pair.first);
    const Kernel* second = graph_.Fusible(pair.second);
    if (first == nullptr || IsContraction(*second)) return;
    if (!accepts_(*first, *second, bytes, pair.is_vertical)) return;
    if (tried_.contains(KeyOf(pair))) return;
    pairs.push_back(pair);
  }

  // Kernels change as they grow, so a pair is known by their sizes, too.
  using Key = std::tuple<int, int, BufferId, size_t, size_t>;
  Key KeyOf(const Pair& pair) {
    return {pair.first, pair.second, pair.buffer, graph_.Fusible(pair.first)->origins.size(),
            graph_.Fusible(pair.second)->origins.size()};
  }

  bool Try(const Pair& pair) {
    if (graph_.Fusible(pair.first) == nullptr || graph_.Fusible(pair.second) == nullptr) {
      return false;
    }
    // Earlier merges of this round may have moved or changed either one.
    const std::vector<BufferId>& reads = graph_.op(pair.second).reads;
    if (!std::binary_search(reads.begin(), reads.end(), pair.buffer)) return false;
    int first = pair.first, second = pair.second;
    if (graph_.op(first).position > graph_.op(second).position) {
      if (pair.is_vertical) return false;
      std::swap(first, second);
    }
    const Key key = KeyOf(pair);
    const absl::string_view objection = TryJoin(graph_, first, second, pair.buffer);
    graph_.Record(first, second, objection.empty(),
                  !objection.empty() ? objection
                  : pair.is_vertical ? "the consumer uses the value where it is made"
                                     : "both read the same memory");
    if (!objection.empty()) tried_.insert(key);
    return objection.empty();
  }

  FusionGraph& graph_;
  const Accepts accepts_;
  absl::flat_hash_set<Key> tried_;
};

}  // namespace

void MergeKernels(FusionGraph& graph) {
  const auto accepts = [](const Kernel& first, const Kernel& second, double bytes,
                          bool is_vertical) {
    if (is_vertical) return !IsContraction(first) || IsPointwise(second);
    const bool one_reduces = !IsPointwise(first) || !IsPointwise(second);
    return one_reduces && !IsContraction(first) && bytes >= kMinSharedBytes;
  };
  Merger(graph, accepts).Run();
}

void MergeHorizontally(FusionGraph& graph) {
  const auto accepts = [](const Kernel& first, const Kernel& second, double bytes,
                          bool is_vertical) {
    return !is_vertical && IsPointwise(first) && IsPointwise(second) &&
           bytes >= kMinPointwiseShared;
  };
  Merger(graph, accepts).Run();
}

namespace {

// A launch costs as much as what the kernel computes, which needs no other parallelism than that of
// its outer points or is little.
bool IsSmallLaunch(const ir::IntContext& ints, const Kernel& kernel) {
  if (IsPointwise(kernel)) return Points(ints, kernel.outer) <= kMostLaunchPoints;
  if (kernel.schedule != ir::Schedule::kLoops || Points(ints, kernel.outer) > 1) return false;
  double inner = 0;
  for (const ir::Phase& phase : kernel.phases) inner += Points(ints, phase.inner);
  return inner <= kMostSerialLaunchPoints;
}

}  // namespace

void MergeLaunches(FusionGraph& graph) {
  // By loops the last kernel of these; one that takes no more makes room for the next.
  absl::flat_hash_map<std::vector<IntExpr>, int> last;
  const std::vector<int> order = graph.order();
  for (const int id : order) {
    const Kernel* kernel = graph.Fusible(id);
    if (kernel == nullptr || !IsSmallLaunch(graph.ints(), *kernel)) continue;
    std::vector<IntExpr> loops;
    for (IntExpr var : kernel->outer) loops.push_back(var.extent());
    const auto [open, is_new] = last.try_emplace(std::move(loops), id);
    if (is_new) continue;
    int first = std::exchange(open->second, id), second = id;
    if (graph.op(first).position > graph.op(second).position) std::swap(first, second);
    if (graph.op(second).position - graph.op(first).position > kMaxLaunchDistance) continue;
    const absl::string_view objection = TryJoinUnrelated(graph, first, second);
    graph.Record(first, second, objection.empty(),
                 objection.empty() ? "one launch for both" : objection);
    open->second = second;
  }
}

}  // namespace kiln::fusion
