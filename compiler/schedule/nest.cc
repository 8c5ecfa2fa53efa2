#include "compiler/schedule/nest.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace kiln::schedule {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;
using ir::ScalarOp;

Compute ToCompute(const Step& step) {
  Compute compute{*step.inst, -1, false};
  compute.inst.indices.clear();
  if (step.index) compute.inst.indices.push_back(step.index);
  return compute;
}

int NumIndirect(const Inst& inst) {
  if (inst.op == ScalarOp::kStore) return static_cast<int>(inst.operands.size()) - 1;
  if (inst.op == ScalarOp::kLoad) {
    return static_cast<int>(inst.operands.size()) - (inst.has_mask ? 1 : 0);
  }
  return 0;
}

bool Uses(const Step& step, const std::vector<IntExpr>& vars) {
  return step.index && std::any_of(vars.begin(), vars.end(),
                                   [&](IntExpr var) { return ContainsVar(step.index, var); });
}

bool AnyUses(const std::vector<const Step*>& steps, const std::vector<IntExpr>& vars) {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const Step* step) { return Uses(*step, vars); });
}

bool IsOneReduction(const Nest& nest) {
  const NestPhase& first = nest.phases[0];
  return first.inner.size() == 1 && !first.ordered &&
         std::all_of(nest.phases.begin() + 1, nest.phases.end(),
                     [](const NestPhase& phase) { return phase.inner.empty(); });
}

std::vector<const Step*> LaterSteps(const Nest& nest) {
  std::vector<const Step*> steps;
  for (size_t i = 1; i < nest.phases.size(); ++i) {
    for (const Step& step : nest.phases[i].steps) steps.push_back(&step);
  }
  return steps;
}

bool IsFixed(IntExpr expr) {
  return !ContainsKind(expr, ir::IntKind::kVar) && !ContainsKind(expr, ir::IntKind::kIndirect);
}

IntExpr Extent(IntContext& ints, IntExpr var) {
  return ints.vars()[var.id()].extent;
}

IntExpr NumPoints(IntContext& ints, const std::vector<IntExpr>& loops) {
  IntExpr points = ints.Const(1);
  for (IntExpr var : loops) points = ints.Mul(points, Extent(ints, var));
  return points;
}

IntExpr PointNumber(IntContext& ints, const std::vector<IntExpr>& loops) {
  IntExpr number = ints.Const(0);
  for (IntExpr var : loops) number = ints.Add(ints.Mul(number, Extent(ints, var)), var);
  return number;
}

int64_t ExtentHint(IntContext& ints, IntExpr var) {
  return std::max<int64_t>(1, ints.EvaluateAtHints(Extent(ints, var)));
}

namespace {

void SubstituteIn(IntContext& ints, NestPhase& phase, const IntContext::VarMap& map) {
  for (Step& step : phase.steps) {
    if (step.index) step.index = ints.Substitute(step.index, map);
  }
}

IntExpr IndexInTile(IntContext& ints, const TileLayout& layout,
                    const std::vector<IntExpr>& indices) {
  IntExpr index = ints.Const(0);
  for (size_t i = 0; i < indices.size(); ++i) {
    const IntExpr place = ints.Sub(indices[i], layout.origin[i]);
    index = ints.Add(index, ints.Mul(place, layout.strides[i]));
  }
  return index;
}

// True where every index moves over (high, low) as over one loop of extent(high) * extent(low).
bool CanJoin(IntContext& ints, const std::vector<NestPhase*>& phases, IntExpr high, IntExpr low) {
  for (const NestPhase* phase : phases) {
    for (const Step& step : phase->steps) {
      if (!step.index) continue;
      IntExpr a = ints.CoefficientOf(step.index, high);
      IntExpr b = ints.CoefficientOf(step.index, low);
      if (!a || !b || ContainsVar(a, low) || ContainsVar(b, high)) return false;
      if (a != ints.Mul(b, Extent(ints, low))) return false;
    }
  }
  return true;
}

void DropSingle(IntContext& ints, std::vector<IntExpr>& loops,
                const std::vector<NestPhase*>& phases) {
  IntContext::VarMap map;
  std::erase_if(loops, [&](IntExpr var) {
    if (!Extent(ints, var).is_const(1)) return false;
    map[var] = ints.Const(0);
    return true;
  });
  if (map.empty()) return;
  for (NestPhase* phase : phases) SubstituteIn(ints, *phase, map);
}

void JoinAdjacent(IntContext& ints, std::vector<IntExpr>& loops,
                  const std::vector<NestPhase*>& phases, const Nest& nest) {
  for (size_t i = loops.size(); i-- > 1;) {
    IntExpr high = loops[i - 1], low = loops[i];
    if (nest.PartOf(high) != nullptr || nest.PartOf(low) != nullptr) continue;
    if (!CanJoin(ints, phases, high, low)) continue;
    IntExpr joined = ints.NewVar(ints.Mul(Extent(ints, high), Extent(ints, low)));
    IntContext::VarMap map = {{high, ints.Const(0)}, {low, joined}};
    for (NestPhase* phase : phases) SubstituteIn(ints, *phase, map);
    loops[i - 1] = joined;
    loops.erase(loops.begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace

const TilePart* Nest::PartOf(IntExpr var) const {
  if (tile == nullptr) return nullptr;
  const auto part = tile->parts.find(var);
  return part == tile->parts.end() ? nullptr : &part->second;
}

absl::StatusOr<Nest> BuildNest(ir::Module& module, const ir::Kernel& kernel, bool collapse,
                               const Tile* tile) {
  IntContext& ints = *module.ints;
  Nest nest;
  nest.tile = tile;
  nest.outer = kernel.outer;
  if (tile != nullptr) {
    std::erase_if(nest.outer, [&](IntExpr var) { return tile->fixed.contains(var); });
  }
  for (const ir::Phase& phase : kernel.phases) {
    NestPhase& made = nest.phases.emplace_back();
    made.inner = phase.inner;
    made.ordered = IsOrdered(phase);
    for (const Inst& inst : phase.body) {
      if (IsOpaque(inst.dtype)) {
        return absl::UnimplementedError(absl::StrCat("kernel @", kernel.name, " computes ",
                                                     DTypeName(inst.dtype),
                                                     ", which target cpp has no code for"));
      }
      Step step{.inst = &inst, .index = IntExpr()};
      if (inst.op == ScalarOp::kIndex) step.index = inst.indices[0];
      if (inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore) {
        const bool in_tile = tile != nullptr && tile->layouts.contains(inst.buffer);
        step.index = in_tile ? IndexInTile(ints, tile->layouts.at(inst.buffer), inst.indices)
                             : LinearIndex(ints, module.buffers[inst.buffer], inst.indices);
      }
      if (tile != nullptr && step.index) step.index = ints.Substitute(step.index, tile->fixed);
      made.steps.push_back(step);
    }
  }
  std::vector<NestPhase*> all;
  for (NestPhase& phase : nest.phases) all.push_back(&phase);
  DropSingle(ints, nest.outer, all);
  if (collapse) JoinAdjacent(ints, nest.outer, all, nest);
  for (NestPhase& phase : nest.phases) {
    DropSingle(ints, phase.inner, {&phase});
    if (collapse) JoinAdjacent(ints, phase.inner, {&phase}, nest);
  }
  return nest;
}

namespace {

// A number that divides `e` wherever `var` is a multiple of `width`; 0 divides only 0.
int64_t KnownDivisor(IntExpr e, IntExpr var, int width) {
  if (e == var) return width;
  int64_t divisor;
  switch (e.kind()) {
    case IntKind::kConst:
      return e.value() == INT64_MIN ? 1 : std::abs(e.value());
    case IntKind::kAdd:
      divisor = 0;
      for (IntExpr term : e.operands()) {
        divisor = std::gcd(divisor, KnownDivisor(term, var, width));
      }
      return divisor;
    case IntKind::kMul:
      divisor = 1;
      for (IntExpr factor : e.operands()) {
        const int64_t d = KnownDivisor(factor, var, width);
        if (d > (int64_t{1} << 20) || divisor > (int64_t{1} << 20)) return divisor;
        divisor *= d;
      }
      return divisor;
    default:
      return 1;
  }
}

// The distance between lanes where it is a known constant.
std::optional<int64_t> ConstantLaneStride(IntExpr e, IntExpr var, int width) {
  if (e == var) return 1;
  if (!ContainsVar(e, var)) return 0;
  if (e.kind() == IntKind::kAdd) {
    int64_t sum = 0;
    for (IntExpr term : e.operands()) {
      std::optional<int64_t> stride = ConstantLaneStride(term, var, width);
      if (!stride) return std::nullopt;
      sum += *stride;
    }
    return sum;
  }
  if (e.kind() == IntKind::kMul) {
    int64_t constant = 1;
    std::optional<int64_t> moving;
    bool other = false;
    for (IntExpr factor : e.operands()) {
      if (factor.is_const()) {
        constant = factor.value();
      } else if (ContainsVar(factor, var)) {
        if (moving) return std::nullopt;
        moving = ConstantLaneStride(factor, var, width);
        if (!moving) return std::nullopt;
      } else {
        other = true;
      }
    }
    if (*moving == 0) return 0;
    if (other) return std::nullopt;
    return *moving * constant;
  }
  if (e.kind() == IntKind::kFloorDiv || e.kind() == IntKind::kMod) {
    IntExpr dividend = e.operands()[0], divisor = e.operands()[1];
    if (!divisor.is_const() || divisor.value() <= 0) return std::nullopt;
    std::optional<int64_t> stride = ConstantLaneStride(dividend, var, width);
    if (!stride || *stride < 0) return std::nullopt;
    if (*stride == 0) return 0;
    // All lanes stay within one multiple of the divisor.
    const int64_t span = *stride * width;
    if (divisor.value() % span != 0 || KnownDivisor(dividend, var, width) % span != 0) {
      return std::nullopt;
    }
    return e.kind() == IntKind::kMod ? *stride : 0;
  }
  return std::nullopt;
}

}  // namespace

IntExpr LaneStride(IntContext& ints, IntExpr index, IntExpr var, int width) {
  if (!ContainsVar(index, var)) return ints.Const(0);
  if (IntExpr coefficient = ints.CoefficientOf(index, var)) return coefficient;
  std::optional<int64_t> stride = ConstantLaneStride(index, var, width);
  return stride ? ints.Const(*stride) : IntExpr();
}

}  // namespace kiln::schedule
