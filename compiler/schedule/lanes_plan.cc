#include "compiler/schedule/lanes_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace kiln::schedule {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;

namespace {

bool IsAccess(ScalarOp op) {
  return op == ScalarOp::kLoad || op == ScalarOp::kStore;
}

// Which values of a phase differ between lanes of `var`, by ValueId, is found along the way: an
// indirect access through one is a gather.
class LaneCost {
 public:
  LaneCost(IntContext& ints, LanesTarget target)
      : ints_(ints), width_(target.width), target_(target) {}

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
        cost += !stride && !indirect && target_.sector_bytes > 0
                    ? OfUneven(inst.dtype, step.index, var)
                    : OfAccess(inst.dtype, stride, phase.ordered && !indirect);
      } else {
        cost += Info(inst.op).cost;
      }
    }
    return cost;
  }

 private:
  // Of one whose lanes are `stride` elements apart; null: anywhere.
  double OfAccess(DType dtype, IntExpr stride, bool ordered) const {
    if (stride && (stride.is_const(1) || stride.is_const(0))) return 1;
    if (target_.sector_bytes > 0) {
      // Each lane in a piece of memory of its own is the worst.
      const double most = std::max(1.0, 1.0 * target_.sector_bytes / DTypeSize(dtype));
      return stride && stride.is_const() ? std::min<double>(most, std::abs(stride.value())) : most;
    }
    // In order, each lane walks a row of its own, and the rows lie far apart.
    return (ordered ? 4 : 2) * width_;
  }

  // Of one whose lanes are not equally far apart, as those of windows: by the pieces of memory that
  // lanes in the middle of the loop take.
  double OfUneven(DType dtype, IntExpr index, IntExpr var) const {
    const int64_t extent = ExtentHint(ints_, var), size = DTypeSize(dtype);
    const int64_t begin = extent / 2 / width_ * width_;
    const int64_t lanes = std::min<int64_t>(width_, extent - begin);
    std::set<int64_t> sectors;
    for (int64_t lane = begin; lane < begin + lanes; ++lane) {
      const int64_t element = ints_.Evaluate(index, [&](IntExpr leaf) {
        if (leaf == var) return lane;
        return leaf.kind() == ir::IntKind::kSymbol ? ints_.EvaluateAtHints(leaf)
                                                   : ExtentHint(ints_, leaf) / 2;
      });
      sectors.insert(element * size / target_.sector_bytes);
    }
    const double contiguous = 1.0 * lanes * size / target_.sector_bytes;
    return std::max(1.0, static_cast<double>(sectors.size()) / std::max(1.0, contiguous));
  }

  bool Varying(ir::ValueId id) const {
    return std::find(varying_.begin(), varying_.end(), id) != varying_.end();
  }

  IntContext& ints_;
  int width_;
  LanesTarget target_;
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

double CostOfOuter(IntContext& ints, const Nest& nest, IntExpr var, LanesTarget target) {
  LaneCost lane_cost(ints, target);
  const double vectors = Points(ints, nest.outer) * VectorsPerPoint(ints, var, target.width);
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
double CostOfInner(IntContext& ints, const NestPhase& phase, LanesTarget target, IntExpr* best) {
  double best_cost = 0;
  *best = IntExpr();
  for (size_t i = phase.inner.size(); i-- > 0;) {
    IntExpr var = phase.inner[i];
    const double vectors = Points(ints, phase.inner) * VectorsPerPoint(ints, var, target.width);
    const double cost = vectors * LaneCost(ints, target).OfVector(phase, var);
    if (*best && cost >= best_cost) continue;
    *best = var;
    best_cost = cost;
  }
  for (const Step& step : phase.steps) {
    if (step.inst->op == ScalarOp::kReduce)
      best_cost += target.width;  // lanes are folded at the end
  }
  return best_cost;
}

// Whether lanes of the inner loops that are planned access neighbours or one element.
bool AreInnerContiguous(IntContext& ints, const Nest& nest, const LanesPlan& plan, int width) {
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    const NestPhase& phase = nest.phases[i];
    if (phase.inner.empty()) continue;
    const IntExpr var = plan.phase_lanes[i].var;
    if (!var) return false;
    for (const Step& step : phase.steps) {
      if (!IsAccess(step.inst->op)) continue;
      const IntExpr stride = LaneStride(ints, step.index, var, width);
      if (!stride || !(stride.is_const(0) || stride.is_const(1))) return false;
    }
  }
  return true;
}

}  // namespace

LanesPlan PlanLanes(IntContext& ints, const Nest& nest, LanesTarget target) {
  LanesPlan plan;
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
    inner_cost += rows * CostOfInner(ints, phase, target, &plan.phase_lanes[i].var);
  }

  IntExpr best;
  double best_cost = inner_cost;
  std::vector<std::string> costs;
  if (any_inner) costs.push_back(absl::StrFormat("inner loops %.3g", inner_cost));
  for (size_t i = nest.outer.size(); i-- > 0;) {
    const double cost = CostOfOuter(ints, nest, nest.outer[i], target);
    costs.push_back(absl::StrFormat("outer loop %d %.3g", i, cost));
    if ((best || any_inner) && cost >= best_cost) continue;
    best = nest.outer[i];
    best_cost = cost;
  }
  // With fewer points the device is idle.
  if (any_inner && rows < static_cast<double>(target.least_points) &&
      AreInnerContiguous(ints, nest, plan, target.width)) {
    best = IntExpr();
  }
  const auto chosen = absl::c_find(nest.outer, best);
  plan.reason = absl::StrCat(
      "lanes of ",
      best        ? absl::StrCat("outer loop ", chosen - nest.outer.begin())
      : any_inner ? "inner loops"
                  : "no loop",
      costs.empty() ? "" : absl::StrCat("; operations on vectors: ", absl::StrJoin(costs, ", ")));

  if (best) {
    plan.outer = true;
    plan.lanes.var = best;
  }
  return plan;
}

IntExpr FindTurnedRows(IntContext& ints, const Nest& nest, const Lanes& lanes) {
  if (nest.phases.size() != 1 || !nest.phases[0].inner.empty()) return IntExpr();
  for (const Step& step : nest.phases[0].steps) {
    if (!IsAccess(step.inst->op)) continue;
    const IntExpr stride = LaneStride(ints, step.index, lanes.var, lanes.width);
    if (stride && (stride.is_const(0) || stride.is_const(1))) continue;
    for (IntExpr var : nest.outer) {
      const IntExpr along = ints.CoefficientOf(step.index, var);
      if (var != lanes.var && along && along.is_const(1)) return var;
    }
  }
  return IntExpr();
}

bool IsTurned(IntContext& ints, const Step& step, IntExpr rows, IntExpr lanes) {
  const Inst& inst = *step.inst;
  if (inst.op != ScalarOp::kLoad || !inst.operands.empty() || inst.dtype == DType::kBool) {
    return false;
  }
  const IntExpr along_row = ints.CoefficientOf(step.index, rows);
  const IntExpr along_lane = ints.CoefficientOf(step.index, lanes);
  return along_row && along_row.is_const(1) && along_lane && !along_lane.is_const(1) &&
         !along_lane.is_const(0) && !ContainsKind(along_lane, ir::IntKind::kVar);
}

}  // namespace kiln::schedule
