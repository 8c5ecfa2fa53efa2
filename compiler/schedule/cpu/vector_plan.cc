#include "compiler/schedule/cpu/vector_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace kiln::schedule::cpu {

using ir::Inst;
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

bool IsAccess(ScalarOp op) {
  return op == ScalarOp::kLoad || op == ScalarOp::kStore;
}

// Which values of a phase differ between lanes of `var`, by ValueId, is found along the way: an
// indirect access through one is a gather.
class LaneCost {
 public:
  LaneCost(IntContext& ints, int width) : ints_(ints), width_(width) {}

  // Of one vector of `width_` lanes of `var` through the phase's body.
  double OfVector(const NestPhase& phase, IntExpr var) {
    double cost = 0;
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      bool varies = step.index && ContainsVar(step.index, var);
      bool indirect = false;
      for (size_t i = 0; i < inst.operands.size(); ++i) {
        const bool operand_varies = Varying(inst.operands[i]);
        varies |= operand_varies;
        indirect |= operand_varies && static_cast<int>(i) < NumIndirect(inst);
      }
      if (varies && inst.result >= 0) varying_.push_back(inst.result);
      if (!varies) {
        cost += 0.25;
      } else if (IsAccess(inst.op)) {
        IntExpr stride = indirect ? IntExpr() : LaneStride(ints_, step.index, var, width_);
        const bool cheap = stride && (stride.is_const(1) || stride.is_const(0));
        // In order, each lane walks a row of its own, and the rows lie far apart.
        const double far = phase.ordered && !indirect ? 4 : 2;
        cost += cheap ? 1 : far * width_;
      } else {
        cost += Info(inst.op).cost;
      }
    }
    return cost;
  }

 private:
  bool Varying(ir::ValueId id) const {
    return std::find(varying_.begin(), varying_.end(), id) != varying_.end();
  }

  IntContext& ints_;
  int width_;
  std::vector<ir::ValueId> varying_;
};

double Points(IntContext& ints, const std::vector<IntExpr>& loops) {
  double points = 1;
  for (IntExpr var : loops) points *= static_cast<double>(ExtentHint(ints, var));
  return points;
}

// Vectors needed for each lane's worth of work: 1 / width, more where the last is partly empty.
double VectorsPerPoint(IntContext& ints, IntExpr var, int width) {
  const int64_t extent = ExtentHint(ints, var);
  return static_cast<double>((extent + width - 1) / width) / static_cast<double>(extent);
}

double CostOfOuter(IntContext& ints, const Nest& nest, IntExpr var, int width) {
  LaneCost lane_cost(ints, width);
  const double vectors = Points(ints, nest.outer) * VectorsPerPoint(ints, var, width);
  double cost = 0;
  for (const NestPhase& phase : nest.phases) {
    cost += vectors * Points(ints, phase.inner) * lane_cost.OfVector(phase, var);
  }
  return cost;
}

double ScalarCost(const NestPhase& phase) {
  double cost = 0;
  for (const Step& step : phase.steps) {
    cost += IsAccess(step.inst->op) ? 1 : Info(step.inst->op).cost;
  }
  return cost;
}

// The best inner loop of a phase and its cost for one outer point.
double CostOfInner(IntContext& ints, const NestPhase& phase, int width, IntExpr* best) {
  double best_cost = 0;
  *best = IntExpr();
  for (size_t i = phase.inner.size(); i-- > 0;) {
    IntExpr var = phase.inner[i];
    const double vectors = Points(ints, phase.inner) * VectorsPerPoint(ints, var, width);
    const double cost = vectors * LaneCost(ints, width).OfVector(phase, var);
    if (*best && cost >= best_cost) continue;
    *best = var;
    best_cost = cost;
  }
  for (const Step& step : phase.steps) {
    if (step.inst->op == ScalarOp::kReduce) best_cost += width;  // lanes are folded at the end
  }
  return best_cost;
}

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

// Sets `row_var` where accesses that are scattered along the lanes are contiguous along it.
void PlanBlocks(IntContext& ints, const Nest& nest, VectorPlan& plan) {
  if (nest.phases.size() != 1 || !nest.phases[0].inner.empty()) return;
  for (const Step& step : nest.phases[0].steps) {
    if (!IsAccess(step.inst->op)) continue;
    IntExpr stride = LaneStride(ints, step.index, plan.lanes.var, plan.lanes.width);
    if (stride && (stride.is_const(0) || stride.is_const(1))) continue;
    for (IntExpr var : nest.outer) {
      IntExpr along = ints.CoefficientOf(step.index, var);
      if (var == plan.lanes.var || !along || !along.is_const(1)) continue;
      plan.row_var = var;
      plan.block = 64;
      absl::StrAppend(&plan.reason, "; in tiles, as something is contiguous along another loop");
      return;
    }
  }
}

}  // namespace

VectorPlan PlanVectors(IntContext& ints, const Nest& nest, VectorIsa isa) {
  const int width = VectorBytes(isa) / 4;
  VectorPlan plan;
  plan.phase_lanes.resize(nest.phases.size());

  bool any_inner = false;
  double inner_cost = 0;
  const double rows = Points(ints, nest.outer);
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    const NestPhase& phase = nest.phases[i];
    if (phase.inner.empty()) {
      inner_cost += rows * ScalarCost(phase);
      continue;
    }
    any_inner = true;
    if (phase.ordered) {
      inner_cost += rows * Points(ints, phase.inner) * ScalarCost(phase);
      continue;
    }
    inner_cost += rows * CostOfInner(ints, phase, width, &plan.phase_lanes[i].var);
  }

  IntExpr best;
  double best_cost = inner_cost;
  std::vector<std::string> costs;
  if (any_inner) costs.push_back(absl::StrFormat("inner loops %.3g", inner_cost));
  for (size_t i = nest.outer.size(); i-- > 0;) {
    const double cost = CostOfOuter(ints, nest, nest.outer[i], width);
    costs.push_back(absl::StrFormat("outer loop %d %.3g", i, cost));
    if ((best || any_inner) && cost >= best_cost) continue;
    best = nest.outer[i];
    best_cost = cost;
  }
  const auto chosen = absl::c_find(nest.outer, best);
  plan.reason = absl::StrCat(
      "lanes of ",
      best        ? absl::StrCat("outer loop ", chosen - nest.outer.begin())
      : any_inner ? "inner loops"
                  : "no loop",
      costs.empty() ? "" : absl::StrCat("; operations on vectors: ", absl::StrJoin(costs, ", ")));

  if (!best) {
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
  plan.outer = true;
  std::vector<const NestPhase*> all;
  for (const NestPhase& phase : nest.phases) all.push_back(&phase);
  plan.lanes = {best, WidthFor(ints, all, best, width)};
  PlanBlocks(ints, nest, plan);
  return plan;
}

}  // namespace kiln::schedule::cpu
