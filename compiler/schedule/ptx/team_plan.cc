#include "compiler/schedule/ptx/team_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;

namespace {

constexpr int kAccessBytes = 16, kWordBytes = 4;
constexpr int kMostLanesOfThread = 8;
// Of a row, where one warp has it, else four accesses of what lanes are wide: larger teams read no
// faster, and fewer elements make shorter programs.
constexpr int kElementsOfThread = 32, kLeastElements = 16, kAccessesOfThread = 4;
constexpr int kWarp = 32;
constexpr int kSectorBytes = 32, kLineBytes = 128;
constexpr int kBlock = 256;
constexpr int kLargestBlock = 1024;
constexpr int kLongestRow = 64 * kLargestBlock;  // vectors that fit a block's registers
// Threads that a multiprocessor should have before lanes are taken together.
constexpr int kThreadsToFill = 1024;
// Points, a thread each, of which one has fewer where threads had better share them.
constexpr int kPointsToFill = 64;

// Of all groups' results.
constexpr int64_t kGroupBytes = 32 << 10;

int PowerOfTwoFrom(int64_t n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}
// The greatest that is not above n.
int PowerOfTwoUpTo(int64_t n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

// Lanes a thread along `var`: of the phases' accesses that are contiguous along it, 16 bytes of the
// smallest type.
int LanesOfThread(IntContext& ints, const std::vector<const NestPhase*>& phases, IntExpr var) {
  int least_bytes = kAccessBytes;
  bool any = false;
  for (const NestPhase* phase : phases) {
    for (const Step& step : phase->steps) {
      if (step.inst->op != ScalarOp::kLoad && step.inst->op != ScalarOp::kStore) continue;
      const IntExpr along = ints.CoefficientOf(step.index, var);
      if (!along || !along.is_const(1)) continue;
      least_bytes = std::min(least_bytes, static_cast<int>(DTypeSize(step.inst->dtype)));
      any = true;
    }
  }
  if (!any) return 1;
  return std::min(kMostLanesOfThread, kAccessBytes / least_bytes);
}

// The bytes of what a phase reduces at a point, where its loops, the only ones of the nest, may be
// shared among groups of threads; else 0.
int64_t SharedBytes(const Nest& nest, const NestPhase& phase) {
  absl::flat_hash_set<ir::BufferId> loaded, stored;
  for (const NestPhase& other : nest.phases) {
    if (&other != &phase && !other.inner.empty()) return 0;
    for (const Step& step : other.steps) {
      if (step.inst->op == ScalarOp::kLoad) loaded.insert(step.inst->buffer);
      if (step.inst->op == ScalarOp::kStore) stored.insert(step.inst->buffer);
    }
  }
  if (phase.ordered || absl::c_any_of(stored, [&](int id) { return loaded.contains(id); })) {
    return 0;
  }
  int64_t bytes = 0;
  for (const Step& step : phase.steps) {
    const ir::Inst& inst = *step.inst;
    if (inst.op == ScalarOp::kReduce) {
      if (IsArg(inst.reduce_kind) || inst.dtype != ComputeType(inst.dtype)) return 0;
      bytes += DTypeSize(inst.dtype);
    } else if (inst.op == ScalarOp::kStore) {
      const bool by_all = absl::c_all_of(
          phase.inner, [&](IntExpr var) { return ir::ContainsVar(step.index, var); });
      if (inst.accumulates || NumIndirect(inst) > 0 || !by_all) return 0;
    }
  }
  return bytes;
}

// No more than divide the extent where other loops stand around it: else every other row would
// begin between two accesses.
int DividingLanes(IntExpr extent, bool has_rows, int lanes) {
  if (extent.is_const()) {
    const int64_t n = extent.value();
    while (lanes > 1 && (has_rows ? n % lanes != 0 : n < lanes)) lanes /= 2;
  } else if (has_rows) {
    return 1;
  }
  return lanes;
}

// Groups, the loop that they share, and with them team and lanes, where there had better be some.
// `lanes`: of a thread.
void PlanGroups(IntContext& ints, const Nest& nest, int units, int lanes, TeamPlan& plan) {
  const auto phase = absl::c_find_if(
      nest.phases, [](const NestPhase& candidate) { return !candidate.inner.empty(); });
  const int64_t bytes = phase == nest.phases.end() ? 0 : SharedBytes(nest, *phase);
  if (bytes == 0) return;
  const IntExpr longest = *absl::c_max_element(phase->inner, [&](IntExpr a, IntExpr b) {
    return ExtentHint(ints, a) <= ExtentHint(ints, b);
  });
  const int64_t rows = PointsHint(ints, nest.outer, plan.lanes.var);
  const int64_t threads = (ExtentHint(ints, plan.lanes.var) + lanes - 1) / lanes;
  // As bytes are those of the smallest type, lanes of others make longer lines.
  const int access = lanes * kAccessBytes / LanesOfThread(ints, {&*phase}, plan.lanes.var);
  const int least = std::min(PowerOfTwoFrom(threads), std::max(1, kLineBytes / access));
  const int64_t missing = int64_t{units} * kThreadsOfColumns / std::max<int64_t>(1, rows * threads);
  int groups = std::min({PowerOfTwoFrom(missing), kBlock / least,
                         PowerOfTwoUpTo(ExtentHint(ints, longest) / kLeastOfGroup)});
  while (groups > 1 && groups * least * lanes * bytes > kGroupBytes) groups /= 2;
  if (groups < kLeastOfGroup || least * lanes < 2) return;
  int width = std::min(PowerOfTwoFrom(threads), kBlock / groups);
  const auto is_too_wide = [&] {
    return rows * ((threads + width - 1) / width) < units ||
           int64_t{groups} * width * lanes * bytes > kGroupBytes;
  };
  while (width > least && is_too_wide()) width /= 2;
  plan.groups = groups;
  plan.shared = longest;
  plan.shared_phase = phase - nest.phases.begin();
  plan.team = groups * width;
  plan.most_lanes = lanes;
  plan.lanes.width = width * lanes;
  absl::StrAppend(&plan.reason, "; teams of ", groups, " groups of ", width, " threads, ", lanes,
                  " lanes each");
}

}  // namespace

int64_t PointsHint(IntContext& ints, const std::vector<IntExpr>& loops, IntExpr without) {
  int64_t points = 1;
  for (IntExpr var : loops) {
    if (var != without) points *= ExtentHint(ints, var);
  }
  return points;
}

int ComputeUnits(const DeviceInfo& device) {
  constexpr int kOfAnA100 = 108;
  return device.compute_units > 0 ? device.compute_units : kOfAnA100;
}

TeamPlan PlanTeam(IntContext& ints, const Nest& nest, const DeviceInfo& device) {
  const int units = ComputeUnits(device);
  TeamPlan plan{PlanLanes(ints, nest,
                          {.width = kWarp,
                           .sector_bytes = kSectorBytes,
                           .least_points = int64_t{units} * kPointsToFill})};
  if (plan.outer) {
    std::vector<const NestPhase*> all, with_loops;
    for (const NestPhase& phase : nest.phases) {
      all.push_back(&phase);
      if (!phase.inner.empty()) with_loops.push_back(&phase);
    }
    const IntExpr var = plan.lanes.var, extent = Extent(ints, var);
    const int64_t rows = PointsHint(ints, nest.outer, var);
    int lanes = DividingLanes(extent, nest.outer.size() > 1, LanesOfThread(ints, all, var));
    plan.most_lanes = lanes;
    // A warp's access is 128 bytes at least; of loops that of what they access.
    const bool has_loops = !with_loops.empty();
    const int of_access = has_loops ? LanesOfThread(ints, with_loops, var) : lanes;
    const int least_lanes = std::max(1, std::min(lanes, of_access) * kWordBytes / kAccessBytes);
    if (has_loops) PlanGroups(ints, nest, units, std::min(lanes, of_access), plan);
    if (plan.groups > 1) return plan;
    const int64_t length = ExtentHint(ints, var);
    // Loops inside have several accesses under way.
    const int64_t fill = static_cast<int64_t>(units) * kThreadsToFill / (has_loops ? 4 : 1);
    while (lanes > least_lanes && rows * (length / lanes) < fill) lanes /= 2;
    const int64_t threads = (length + lanes - 1) / lanes;
    plan.team = std::min(kBlock, PowerOfTwoFrom(threads));
    // Small launches: more blocks.
    while (plan.team > kWarp && rows * (threads / plan.team) < units) plan.team /= 2;
    plan.lanes.width = plan.team * lanes;
    absl::StrAppend(&plan.reason, "; teams of ", plan.team, " threads, ", lanes, " lanes each");
    return plan;
  }
  int64_t vectors = 0;  // of the longest phase, one thread's lanes each
  int with_most = 0;    // threads that have kElementsOfThread each
  std::vector<int> lanes(nest.phases.size(), 1);
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    const IntExpr var = plan.phase_lanes[i].var;
    if (!var) continue;
    const bool has_rows = !nest.outer.empty() || nest.phases[i].inner.size() > 1;
    const int widest = LanesOfThread(ints, {&nest.phases[i]}, var);
    lanes[i] = DividingLanes(Extent(ints, var), has_rows, widest);
    const int64_t length = ExtentHint(ints, var);
    vectors = std::max(vectors, (length + lanes[i] - 1) / lanes[i]);
    const auto threads = [&](int elements) {
      return vectors <= kWarp ? PowerOfTwoFrom(vectors)
                              : std::max(kWarp, PowerOfTwoFrom(vectors * lanes[i] / elements));
    };
    with_most = std::max(with_most, threads(kElementsOfThread));
    const int elements = length <= kWarp * kElementsOfThread
                             ? kElementsOfThread
                             : std::max(kLeastElements, kAccessesOfThread * widest);
    plan.team = std::max(plan.team, threads(elements));
  }
  // The largest blocks leave multiprocessors idle between them, but hold the longest rows.
  const bool holds_longest = with_most > kLargestBlock / 2 && vectors <= kLongestRow;
  plan.team = std::min(plan.team, holds_longest ? kLargestBlock : kLargestBlock / 2);
  const int64_t rows = PointsHint(ints, nest.outer);
  while (plan.team < kLargestBlock && plan.team < vectors && rows * plan.team < 256 * units) {
    plan.team *= 2;
  }
  if (device.rank == 1) plan.team = std::min(2 * plan.team, kLargestBlock);
  if (device.rank == 2 && plan.team > kWarp) plan.team /= 2;
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    plan.phase_lanes[i].width = plan.phase_lanes[i].var ? plan.team * lanes[i] : 1;
  }
  absl::StrAppend(&plan.reason, "; teams of ", plan.team, " threads");
  return plan;
}

}  // namespace kiln::schedule::ptx
