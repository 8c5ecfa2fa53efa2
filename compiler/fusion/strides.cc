#include "compiler/fusion/strides.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace kiln::fusion {

using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;

namespace {

constexpr double kMinBytes = 1 << 20;  // what is smaller stays in a cache between the passes

// Whether some loop's iterations access neighbours.
bool IsAlongAny(ir::Module& module, const Inst& inst, const std::vector<IntExpr>& loops) {
  return std::any_of(loops.begin(), loops.end(),
                     [&](IntExpr loop) { return StrideAlong(module, inst, loop) == 1; });
}

bool CrossesRows(FusionGraph& graph, const Kernel& kernel) {
  ir::Module& module = graph.module();
  bool goes_along = false, goes_across = false;
  for (const Phase& phase : kernel.phases) {
    if (phase.inner.empty()) continue;
    for (const Inst& inst : phase.body) {
      const bool accesses = inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore;
      if (!accesses || !graph.IsKept(inst.buffer) || BufferBytes(module, inst.buffer) < kMinBytes)
        continue;
      const int64_t stride = StrideAlong(module, inst, phase.inner.back());
      goes_along |= stride == 1;
      goes_across |= stride > 1 && inst.op == ScalarOp::kLoad && NumIndirect(inst) == 0 &&
                     IsAlongAny(module, inst, kernel.outer);
    }
  }
  return goes_along && goes_across;
}

}  // namespace

std::vector<int64_t> StepsAlong(ir::IntContext& ints, const ir::Inst& inst, IntExpr loop) {
  const auto value = [&](IntExpr index, int64_t iteration) {
    return ints.Evaluate(index, [&](IntExpr leaf) -> int64_t {
      if (leaf.kind() == ir::IntKind::kSymbol) return ints.EvaluateAtHints(leaf);
      return leaf == loop ? iteration : 0;
    });
  };
  std::vector<int64_t> steps;
  for (IntExpr index : inst.indices) steps.push_back(value(index, 1) - value(index, 0));
  return steps;
}

int64_t StrideAlong(ir::Module& module, const ir::Inst& inst, IntExpr loop) {
  const std::vector<int64_t> steps = StepsAlong(*module.ints, inst, loop);
  const std::vector<IntExpr>& strides = module.buffers[inst.buffer].strides;
  int64_t stride = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    stride += steps[i] * module.ints->EvaluateAtHints(strides[i]);
  }
  return std::abs(stride);
}

bool WouldCrossRows(FusionGraph& graph, const Kernel& joined,
                    std::initializer_list<const Kernel*> parts) {
  return joined.schedule == ir::Schedule::kLoops && CrossesRows(graph, joined) &&
         std::none_of(parts.begin(), parts.end(),
                      [&](const Kernel* part) { return CrossesRows(graph, *part); });
}

}  // namespace kiln::fusion
