#include "compiler/schedule/cpu/segments.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "compiler/schedule/cpu/answers.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;
using ir::ScalarOp;
using ir::ValueId;

constexpr size_t kMostBreaks = 40;
constexpr size_t kMostSteps = 800;  // of all segments

// A comparison that has one answer below `at` and the other from there on.
struct Turn {
  ValueId result;
  IntExpr at;
  bool before;
};

// Where `inst` compares two numbers that differ by `var` or -`var` and a fixed number.
std::optional<Turn> TurnOf(IntContext& ints, const Inst& inst, IntExpr a, IntExpr b, IntExpr var) {
  const bool is_strict = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kGe;
  const bool is_less = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kLe;
  if (!is_less && inst.op != ScalarOp::kGe && inst.op != ScalarOp::kGt) return std::nullopt;
  const IntExpr difference = ints.Sub(a, b);
  const IntExpr coefficient = ints.CoefficientOf(difference, var);
  if (!coefficient || !(coefficient.is_const(1) || coefficient.is_const(-1))) return std::nullopt;
  const IntExpr rest = ints.Substitute(difference, {{var, ints.Const(0)}});
  if (!IsFixed(rest)) return std::nullopt;
  if (coefficient.is_const(1)) {
    // var + rest < 0, or <= 0
    return Turn{inst.result, ints.Add(ints.Sub(ints.Const(0), rest), is_strict ? 0 : 1), is_less};
  }
  // rest < var, or <= var
  return Turn{inst.result, ints.Add(rest, is_strict ? 1 : 0), !is_less};
}

std::vector<Turn> TurnsOf(IntContext& ints, const NestPhase& phase, IntExpr var) {
  const absl::flat_hash_map<ValueId, IntExpr> values = IndexValues(ints, {phase});
  std::vector<Turn> turns;
  for (const Step& step : phase.steps) {
    const Inst& inst = *step.inst;
    if (inst.operands.size() != 2) continue;
    const auto a = values.find(inst.operands[0]), b = values.find(inst.operands[1]);
    if (a == values.end() || b == values.end()) continue;
    if (auto turn = TurnOf(ints, inst, a->second, b->second, var)) turns.push_back(*turn);
  }
  return turns;
}

// Puts `at` into its place among `breaks`; false where that is not known.
bool Insert(IntContext& ints, IntExpr at, std::vector<IntExpr>& breaks) {
  size_t place = 0;
  for (; place < breaks.size(); ++place) {
    if (at == breaks[place]) return true;
    if (ints.ProvablyLess(at, breaks[place])) break;
    if (!ints.ProvablyLess(breaks[place], at)) return false;
  }
  breaks.insert(breaks.begin() + place, at);
  return true;
}

// The breaks inside of [0, extent); none where their order, or some turn's place, is unknown.
std::optional<std::vector<IntExpr>> BreaksOf(IntContext& ints, const std::vector<Turn>& turns,
                                             IntExpr extent) {
  std::vector<IntExpr> breaks;
  for (const Turn& turn : turns) {
    if (ints.ProvablyLessEqual(turn.at, ints.Const(0)) || ints.ProvablyLessEqual(extent, turn.at)) {
      continue;
    }
    const bool inside =
        ints.ProvablyLess(ints.Const(0), turn.at) && ints.ProvablyLess(turn.at, extent);
    if (!inside || !Insert(ints, turn.at, breaks) || breaks.size() > kMostBreaks) {
      return std::nullopt;
    }
  }
  return breaks;
}

// The number of the first segment in which the turn has its second answer. By place, not by proof:
// the order of two breaks need not be provable where that of their neighbours is.
size_t FirstSegmentAfter(IntContext& ints, const Turn& turn, const std::vector<IntExpr>& breaks) {
  const auto at = std::find(breaks.begin(), breaks.end(), turn.at);
  if (at != breaks.end()) return static_cast<size_t>(at - breaks.begin()) + 1;
  return ints.ProvablyLessEqual(turn.at, ints.Const(0)) ? 0 : breaks.size() + 1;
}

// Whether lanes that begin anywhere are as easy to reach as those at multiples of the width.
bool NeedsNoAlignment(IntContext& ints, const std::vector<Step>& steps, const Lanes& lanes) {
  return std::all_of(steps.begin(), steps.end(), [&](const Step& step) {
    return !step.index || !LaneStride(ints, step.index, lanes.var, lanes.width) ||
           ints.CoefficientOf(step.index, lanes.var);
  });
}

std::optional<Segments> SegmentsOf(IntContext& ints, const NestPhase& phase, IntExpr var,
                                   const VectorPlan& plan) {
  const std::vector<Step>& steps = phase.steps;
  const std::vector<Turn> turns = TurnsOf(ints, phase, var);
  auto breaks = BreaksOf(ints, turns, Extent(ints, var));
  if (turns.empty() || !breaks || breaks->empty()) return std::nullopt;
  Segments segments{var, *std::move(breaks), {}, {}, true};
  size_t total = 0;
  for (size_t i = 0; i <= segments.breaks.size(); ++i) {
    Answers known;
    for (const Turn& turn : turns) {
      const bool is_after = FirstSegmentAfter(ints, turn, segments.breaks) <= i;
      known[turn.result] = is_after ? !turn.before : turn.before;
    }
    segments.steps.push_back(WithAnswers({phase}, std::move(known), segments.insts)[0]);
    total += segments.steps.back().size();
    const IntExpr begin = i == 0 ? ints.Const(0) : segments.breaks[i - 1];
    if (var == plan.lanes.var && !ints.Mod(begin, plan.lanes.width).is_const(0)) {
      segments.aligned = false;
    }
  }
  const size_t least =
      std::min_element(segments.steps.begin(), segments.steps.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); })
          ->size();
  if (total > kMostSteps || least == steps.size()) return std::nullopt;
  if (!segments.aligned && !NeedsNoAlignment(ints, steps, plan.lanes)) return std::nullopt;
  return segments;
}

}  // namespace

std::optional<Segments> PlanSegments(IntContext& ints, const Nest& nest, const VectorPlan& plan) {
  if (!plan.outer || plan.row_var || nest.phases.size() != 1 || !nest.phases[0].inner.empty()) {
    return std::nullopt;
  }
  // The innermost first: it is the one that is entered most often.
  std::vector<IntExpr> vars = {plan.lanes.var};
  for (auto var = nest.outer.rbegin(); var != nest.outer.rend(); ++var) {
    if (*var != plan.lanes.var) vars.push_back(*var);
  }
  for (IntExpr var : vars) {
    if (nest.PartOf(var) != nullptr) continue;  // the comparison may change outside of the tile
    if (auto segments = SegmentsOf(ints, nest.phases[0], var, plan)) return segments;
  }
  return std::nullopt;
}

}  // namespace kiln::schedule::cpu
