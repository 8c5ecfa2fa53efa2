#include "compiler/schedule/ptx/split_reductions.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/ir/fixed_values.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/cut_reduction.h"
#include "compiler/schedule/ptx/late_sums.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;

// Elements that a thread should reduce of a part before cutting costs more than it gives.
constexpr int64_t kLeastPart = 32;
// Of columns the kernel that reduces the parts takes them one after another. Of few columns a
// column's parts lie beside each other, for threads to share: so they may be more.
constexpr int64_t kMostPartsOfColumns = 256, kMostParts = 1024;
constexpr int64_t kMostScattered = 1 << 18;  // parts of all columns
// Of those, for each element that is read: what is written and read again takes no time beside it.
constexpr int64_t kElementsOfPart = 128, kLeastMoreParts = 1 << 16;

constexpr int64_t kLeastInWaves = 1 << 24;  // elements for which a last short wave counts

bool Stores(const Phase& phase) {
  return absl::c_any_of(phase.body, [](const Inst& i) { return i.op == ScalarOp::kStore; });
}

}  // namespace

bool OnlyReduces(const Phase& first) {
  if (first.inner.empty() || ir::IsOrdered(first)) return false;
  bool reduces = false;
  for (const Inst& inst : first.body) {
    if (inst.op == ScalarOp::kStore) {
      const bool by_all = absl::c_all_of(first.inner, [&](IntExpr var) {
        return absl::c_any_of(inst.indices, [&](IntExpr e) { return ir::ContainsVar(e, var); });
      });
      if (!by_all) return false;
    }
    if (inst.op != ScalarOp::kReduce) continue;
    if (ir::IsArg(inst.reduce_kind) || inst.dtype != ComputeType(inst.dtype)) return false;
    reduces = true;
  }
  return reduces;
}

namespace {

// Whether all that the kernel's loops do is to reduce, in one pass, and to store what only other
// kernels load; phases without loops take the results.
bool IsReduction(const Kernel& kernel) {
  if (kernel.schedule != ir::Schedule::kLoops || kernel.phases.empty()) return false;
  const Phase& first = kernel.phases[0];
  if (!OnlyReduces(first)) return false;
  absl::flat_hash_set<ir::BufferId> stored;
  for (const Inst& inst : first.body) {
    if (inst.op == ScalarOp::kStore) stored.insert(inst.buffer);
  }
  for (size_t p = 1; p < kernel.phases.size(); ++p) {
    const Phase& phase = kernel.phases[p];
    if (!phase.inner.empty() && !FindLateSums(kernel, 0, p)) return false;
    if (absl::c_any_of(phase.body, [&](const Inst& inst) {
          return inst.op != ScalarOp::kReduce && stored.contains(inst.buffer);
        })) {
      return false;
    }
  }
  return true;
}

class Splitter {
 public:
  Splitter(ir::Module& module, const DeviceInfo& device)
      : module_(module), ints_(*module.ints), device_(device) {}

  // The kernel that reduces parts, and changes `kernel`; nothing where it stays as it is.
  std::optional<Kernel> Split(Kernel& kernel) {
    // What is made once for many calls needs no haste.
    if (!IsReduction(kernel) || ir::StoresPrepared(module_, {&kernel, 1})) return std::nullopt;
    const int64_t wanted = CountParts(kernel);
    if (wanted < 2) return std::nullopt;
    plan_ = {};
    plan_.parts_beside = scatters_ && wanted * PointsHint(ints_, kernel.outer) <= kMostScattered;
    // A store has no mask.
    ChooseLoops(kernel.phases[0].inner, wanted, /*exactly=*/Stores(kernel.phases[0]));
    if (!plan_.loop && PointsHint(ints_, plan_.whole) < 2) return std::nullopt;
    return CutReduction(module_, plan_, kernel);
  }

 private:
  // How many parts of all that a point reduces are worth while.
  int64_t CountParts(const Kernel& kernel) {
    absl::StatusOr<Nest> nest = BuildNest(module_, kernel, /*collapse=*/true);
    if (!nest.ok()) return 1;
    // The kernel of parts makes late sums in the loops of the first phase.
    const size_t num_phases = nest->phases.size();
    nest->phases.erase(std::remove_if(nest->phases.begin() + 1, nest->phases.end(),
                                      [](const NestPhase& phase) { return !phase.inner.empty(); }),
                       nest->phases.end());
    const TeamPlan plan = PlanTeam(ints_, *nest, device_);
    // Groups of threads take parts that lie apart, in one pass.
    scatters_ = plan.outer && (plan.groups == 1 || nest->phases.size() < num_phases);
    const int64_t points = PointsHint(ints_, kernel.outer);
    int64_t threads = points;
    if (plan.outer) {
      threads = threads * plan.groups / plan.most_lanes;
    } else {
      threads *= plan.team;
    }
    // Of a row a thread's share is what its team leaves it.
    const int64_t length = PointsHint(ints_, kernel.phases[0].inner);
    const int64_t least = plan.groups > 1 ? kLeastOfGroup * plan.groups
                          : plan.outer    ? kLeastPart
                                          : kLeastPart * plan.team;
    const int64_t most = length / least;
    const int64_t fill = plan.outer ? kThreadsOfColumns : kThreadsOfRows;
    int64_t wanted = ComputeUnits(device_) * fill / std::max<int64_t>(1, threads);
    if (plan.groups > 1 && length * points >= kLeastInWaves) {
      const int64_t blocks = PointsHint(ints_, nest->outer, plan.lanes.var) *
                             CeilDiv(ExtentHint(ints_, plan.lanes.var), plan.lanes.width);
      wanted = InWaves(std::max<int64_t>(1, wanted), blocks,
                       ComputeUnits(device_) * kThreadsOfColumns / plan.team);
    }
    const int64_t more =
        std::clamp(length * points / kElementsOfPart, kLeastMoreParts, kMostScattered);
    const int64_t of_columns = std::max(kMostPartsOfColumns, more / std::max<int64_t>(1, points));
    return std::min({wanted, most, plan.outer ? std::min(kMostParts, of_columns) : kMostParts});
  }

  // Some more parts where the last of the waves in which the device takes all of their blocks,
  // `wave` at a time, would leave much of it idle. `blocks`: of one part of all.
  static int64_t InWaves(int64_t parts, int64_t blocks, int64_t wave) {
    for (const int64_t n : {parts, 2 * parts, 4 * parts}) {
      const int64_t waves = CeilDiv(n * blocks, wave);
      if (waves == 1 || 10 * n * blocks >= 9 * waves * wave) return n;
    }
    return parts;
  }

  // Loops that make some `wanted` parts: outer ones whole, one after another, then pieces of the
  // next, equal ones where parts are to be made `exactly`.
  void ChooseLoops(const std::vector<IntExpr>& loops, int64_t wanted, bool exactly) {
    for (IntExpr var : loops) {
      const int64_t extent = ExtentHint(ints_, var);
      if (extent > wanted) {
        plan_.pieces = DivideInto(Extent(ints_, var), wanted, exactly);
        if (plan_.pieces > 1) plan_.loop = var;
        return;
      }
      plan_.whole.push_back(var);
      wanted /= std::max<int64_t>(1, extent);
    }
  }

  // As near to `wanted` pieces as make them equal, where half to twice as many do (to half as many
  // again, if they need not be); else 1 if they have to be.
  static int64_t DivideInto(IntExpr extent, int64_t wanted, bool exactly) {
    if (!extent.is_const()) return exactly ? 1 : wanted;
    const auto divides = [&](int64_t n) { return extent.value() % n == 0; };
    for (int64_t n = wanted; 2 * n > wanted && n > 1; --n) {
      if (divides(n)) return n;
    }
    const int64_t most = exactly ? 2 * wanted : wanted + wanted / 2;
    for (int64_t n = wanted + 1; n <= most; ++n) {
      if (divides(n)) return n;
    }
    return exactly ? 1 : wanted;
  }

  ir::Module& module_;
  IntContext& ints_;
  const DeviceInfo& device_;
  CutPlan plan_;
  bool scatters_ = false;  // parts of a column are better read if they lie beside each other
};

}  // namespace

void SplitReductions(ir::Module& module, const DeviceInfo& device) {
  Splitter splitter(module, device);
  std::vector<ir::Operation> operations;
  for (ir::Operation& operation : module.operations) {
    if (auto* kernel = std::get_if<Kernel>(&operation)) {
      if (std::optional<Kernel> parts = splitter.Split(*kernel)) {
        operations.emplace_back(*std::move(parts));
      }
    }
    operations.push_back(std::move(operation));
  }
  module.operations = std::move(operations);
}

}  // namespace kiln::schedule::ptx
