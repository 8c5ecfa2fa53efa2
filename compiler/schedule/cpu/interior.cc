#include "compiler/schedule/cpu/interior.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "compiler/schedule/cpu/answers.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

// A comparison that holds in all iterations of the inner loops where begin <= var < end.
struct Side {
  ValueId result;
  IntExpr var;
  int64_t begin, end;
};

// The least value of `expr` over the loops that it is linear in; null where it is not, or where
// something else is left in it.
std::optional<int64_t> LeastOver(IntContext& ints, IntExpr expr,
                                 const std::vector<IntExpr>& loops) {
  ir::IntContext::VarMap at;
  for (IntExpr var : loops) {
    const IntExpr coefficient = ints.CoefficientOf(expr, var);
    if (!coefficient || !coefficient.is_const() || !Extent(ints, var).is_const()) {
      return std::nullopt;
    }
    at[var] = coefficient.value() < 0 ? ints.Add(Extent(ints, var), -1) : ints.Const(0);
  }
  const IntExpr least = ints.Substitute(expr, at);
  return least.is_const() ? std::optional(least.value()) : std::nullopt;
}

// Where `inst` compares what moves with one outer loop and with inner ones to a fixed number.
std::optional<Side> SideOf(IntContext& ints, const Inst& inst, IntExpr a, IntExpr b,
                           const std::vector<IntExpr>& outer, const std::vector<IntExpr>& inner) {
  const bool is_less = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kLe;
  if (!is_less && inst.op != ScalarOp::kGe && inst.op != ScalarOp::kGt) return std::nullopt;
  const bool is_strict = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kGt;
  // It holds where this is 0 or more.
  const IntExpr slack = ints.Add(is_less ? ints.Sub(b, a) : ints.Sub(a, b), is_strict ? -1 : 0);
  const auto var = absl::c_find_if(outer, [&](IntExpr v) { return ContainsVar(slack, v); });
  if (var == outer.end() || !Extent(ints, *var).is_const()) return std::nullopt;
  const IntExpr slope = ints.CoefficientOf(slack, *var);
  if (!slope || !slope.is_const()) return std::nullopt;
  const auto least = LeastOver(ints, ints.Substitute(slack, {{*var, ints.Const(0)}}), inner);
  if (!least) return std::nullopt;
  // least + slope * var >= 0
  const int64_t extent = Extent(ints, *var).value();
  const int64_t steps = ints.FloorDiv(ints.Const(*least), std::abs(slope.value())).value();
  if (slope.value() > 0) {
    return Side{inst.result, *var, std::max<int64_t>(0, -steps), extent};
  }
  return Side{inst.result, *var, 0, std::min(extent, steps + 1)};
}

std::vector<Side> SidesOf(IntContext& ints, const Nest& nest) {
  const absl::flat_hash_map<ValueId, IntExpr> values = IndexValues(ints, nest.phases);
  std::vector<Side> sides;
  for (const NestPhase& phase : nest.phases) {
    if (phase.inner.empty()) continue;
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (inst.operands.size() != 2) continue;
      const auto a = values.find(inst.operands[0]), b = values.find(inst.operands[1]);
      if (a == values.end() || b == values.end()) continue;
      const auto side = SideOf(ints, inst, a->second, b->second, nest.outer, phase.inner);
      if (side) sides.push_back(*side);
    }
  }
  return sides;
}

// Below 1 inside of the sides of all loops but `lanes`; null where there are none.
IntExpr RowsOf(IntContext& ints, const std::vector<Side>& sides, IntExpr lanes) {
  IntExpr rows;
  const auto require = [&](IntExpr below_one) {
    rows = rows ? ints.Max(rows, below_one) : below_one;
  };
  for (const Side& side : sides) {
    if (side.var == lanes) continue;
    if (side.begin > 0) require(ints.Sub(ints.Const(side.begin), side.var));
    if (side.end < Extent(ints, side.var).value()) require(ints.Add(side.var, 1 - side.end));
  }
  return rows;
}

bool HasMask(const std::vector<std::vector<Step>>& phases) {
  return absl::c_any_of(phases, [](const std::vector<Step>& steps) {
    return absl::c_any_of(steps, [](const Step& step) { return step.inst->has_mask; });
  });
}

}  // namespace

std::optional<Interior> PlanInterior(IntContext& ints, const Nest& nest, const VectorPlan& plan) {
  const bool has_loops =
      absl::c_any_of(nest.phases, [](const NestPhase& phase) { return !phase.inner.empty(); });
  const bool is_ordered =
      absl::c_any_of(nest.phases, [](const NestPhase& phase) { return phase.ordered; });
  if (!plan.outer || plan.row_var || !has_loops || is_ordered || nest.tile != nullptr ||
      plan.lanes.width == 1 || !Extent(ints, plan.lanes.var).is_const()) {
    return std::nullopt;
  }
  const std::vector<Side> sides = SidesOf(ints, nest);
  const int64_t extent = Extent(ints, plan.lanes.var).value(), width = plan.lanes.width;
  Interior interior;
  interior.end = extent;
  Answers of_rows, all;
  for (const Side& side : sides) {
    all[side.result] = true;
    if (side.var != plan.lanes.var) {
      if (side.begin >= side.end) return std::nullopt;
      of_rows[side.result] = true;
      continue;
    }
    interior.begin = std::max(interior.begin, (side.begin + width - 1) / width * width);
    if (side.end < extent) {
      interior.end = std::min(interior.end, std::max<int64_t>(0, side.end) / width * width);
    }
  }
  const int64_t inside = interior.end - interior.begin;
  if (inside == extent || 2 * inside < extent) return std::nullopt;
  interior.rows = RowsOf(ints, sides, plan.lanes.var);
  interior.steps = WithAnswers(nest.phases, std::move(all), interior.insts);
  if (HasMask(interior.steps)) return std::nullopt;
  interior.row_steps = WithAnswers(nest.phases, std::move(of_rows), interior.insts);
  return interior;
}

}  // namespace kiln::schedule::cpu
