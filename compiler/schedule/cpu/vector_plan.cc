#include "compiler/schedule/cpu/vector_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace kiln::schedule::cpu {

using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;

VectorIsa IsaOf(const DeviceInfo& device) {
  auto has = [&](absl::string_view feature) { return device.HasFeature(feature); };
  if (has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl")) {
    return VectorIsa::kAvx512;
  }
  return has("avx2") && has("fma") ? VectorIsa::kAvx2 : VectorIsa::kBaseline;
}

int VectorBytes(VectorIsa isa) {
  return isa == VectorIsa::kAvx512 ? 64 : isa == VectorIsa::kAvx2 ? 32 : 16;
}

namespace {

// Simple bodies take several vectors at a time, which hides latency and shortens loop overhead.
int WidthFor(IntContext& ints, const std::vector<const NestPhase*>& phases, IntExpr var,
             int width) {
  int operations = 0;
  bool elementary = false, wide = false;
  for (const NestPhase* phase : phases) {
    for (const Step& step : phase->steps) {
      operations += step.inst->op != ScalarOp::kConst;
      elementary |= IsElementary(step.inst->op);
      wide |= DTypeSize(step.inst->dtype) == 8;
    }
  }
  const bool reduces =
      absl::c_any_of(phases, [](const auto* phase) { return !phase->inner.empty(); });
  const bool down_columns = std::any_of(phases.begin(), phases.end(), [&](const NestPhase* phase) {
    return !phase->inner.empty() &&
           std::find(phase->inner.begin(), phase->inner.end(), var) == phase->inner.end();
  });
  if (!elementary && !wide && operations <= 12) {
    // Down columns each step reads another row: long pieces of it, while accumulators fit
    // registers (of 64 bytes there are 32, of shorter ones 16) and there are pieces for all
    // threads.
    const int longest = width >= 16 && ExtentHint(ints, var) >= 128 * width ? 16 : 8;
    width *= operations <= 4 && down_columns ? longest
             : operations <= 3 && reduces    ? 8
             : operations <= 7               ? 4
                                             : 2;
  }
  IntExpr extent = Extent(ints, var);
  while (width > 1 && extent.is_const() && width / 2 >= extent.value()) width /= 2;
  // Several vectors only where they divide the loop, or where it is long.
  while (width > 16 && ExtentHint(ints, var) % width != 0 && ExtentHint(ints, var) < 8 * width) {
    width /= 2;
  }
  return width;
}

}  // namespace

VectorPlan PlanVectors(IntContext& ints, const Nest& nest, VectorIsa isa) {
  const int width = VectorBytes(isa) / 4;
  VectorPlan plan{PlanLanes(ints, nest, {.width = width})};
  if (!plan.outer) {
    for (size_t i = 0; i < nest.phases.size(); ++i) {
      Lanes& lanes = plan.phase_lanes[i];
      if (!lanes.var) continue;
      lanes.width = WidthFor(ints, {&nest.phases[i]}, lanes.var, width);
      const TilePart* part = nest.PartOf(lanes.var);
      if (part != nullptr && !part->begin.is_const(0)) {
        lanes.width = std::min(lanes.width, kPartUnit);
      }
    }
    return plan;
  }
  std::vector<const NestPhase*> all;
  for (const NestPhase& phase : nest.phases) all.push_back(&phase);
  plan.lanes.width = WidthFor(ints, all, plan.lanes.var, width);
  plan.row_var = FindTurnedRows(ints, nest, plan.lanes);
  if (plan.row_var) {
    absl::StrAppend(&plan.reason, "; in tiles, as something is contiguous along another loop");
  }
  return plan;
}

}  // namespace kiln::schedule::cpu
