#include "compiler/schedule/cpu/panels.h"

#include <utility>
#include <vector>

#include "compiler/schedule/builder.h"
#include "compiler/schedule/micro.h"

namespace kiln::schedule::cpu {
namespace {

using ir::IntContext;
using ir::IntExpr;

constexpr int64_t kMostLanes = 512;

// The innermost loops of a panel: k, its lanes and, of pairs, the two of each.
struct PanelLoops {
  IntExpr k, lane, pair;
};

bool HasCoefficients(IntContext& ints, IntExpr index, const PanelLoops& loops, int64_t of_k,
                     int64_t of_pair) {
  const IntExpr k = ints.CoefficientOf(index, loops.k);
  if (!k || !k.is_const(of_k)) return false;
  if (!loops.pair) return true;
  const IntExpr pair = ints.CoefficientOf(index, loops.pair);
  return pair && pair.is_const(of_pair);
}

}  // namespace

std::optional<Tree> SchedulePanels(ir::Module& module, const ir::Kernel& kernel, const Nest& nest) {
  IntContext& ints = *module.ints;
  if (nest.phases.size() != 1 || !nest.phases[0].inner.empty()) return std::nullopt;
  const std::vector<Step>& steps = nest.phases[0].steps;
  if (steps.size() != 2) return std::nullopt;
  const ir::Inst &load = *steps[0].inst, &store = *steps[1].inst;
  const bool moves = load.op == ir::ScalarOp::kLoad && load.operands.empty() &&
                     store.op == ir::ScalarOp::kStore && store.operands.size() == 1 &&
                     !store.accumulates && load.buffer != store.buffer && load.dtype == store.dtype;
  if (!moves) return std::nullopt;

  const bool pairs = module.buffers[store.buffer].sizes.size() == 5;
  std::vector<IntExpr> outer = nest.outer;
  PanelLoops loops;
  for (IntExpr* loop : {pairs ? &loops.pair : &loops.lane, pairs ? &loops.lane : &loops.k,
                        pairs ? &loops.k : nullptr}) {
    if (loop == nullptr) break;
    if (outer.empty()) return std::nullopt;
    *loop = outer.back();
    outer.pop_back();
  }
  const IntExpr lanes = Extent(ints, loops.lane), depth = Extent(ints, loops.k);
  if (!lanes.is_const() || lanes.value() > kMostLanes || lanes.value() % 4 != 0)
    return std::nullopt;
  if (pairs && !Extent(ints, loops.pair).is_const(2)) return std::nullopt;
  const int64_t each = pairs ? 2 : 1, width = lanes.value();
  const IntExpr from = steps[0].index, to = steps[1].index;
  const IntExpr lane_stride = ints.CoefficientOf(from, loops.lane);
  const IntExpr to_lane = ints.CoefficientOf(to, loops.lane);
  if (!lane_stride || !to_lane || !to_lane.is_const(each) ||
      !HasCoefficients(ints, from, loops, each, 1) ||
      !HasCoefficients(ints, to, loops, each * width, 1)) {
    return std::nullopt;
  }
  if (pairs && !ints.Mod(lane_stride, 2).is_const(0)) return std::nullopt;

  ir::IntContext::VarMap origin = {{loops.k, ints.Const(0)}, {loops.lane, ints.Const(0)}};
  if (pairs) origin[loops.pair] = ints.Const(0);
  Builder builder(module, kernel, nest);
  Block root;
  Block* at = &root;
  for (IntExpr var : outer) at = &builder.AddLoop(builder.Whole(var, Binding::kTask), *at);
  at->push_back({PackLanes(ints, pairs, static_cast<int>(width),
                           {store.buffer, -1, ints.Substitute(to, origin)},
                           {load.buffer, -1, ints.Substitute(from, origin)}, lane_stride, lanes,
                           ints.Mul(depth, each))});
  builder.tree().body = std::move(root);
  builder.tree().reasons.push_back("whole panels, each by one micro-kernel");
  return std::move(builder.tree());
}

}  // namespace kiln::schedule::cpu
