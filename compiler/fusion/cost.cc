#include "compiler/fusion/cost.h"

#include <algorithm>

#include "compiler/fusion/fusion_graph.h"
#include "compiler/ir/index_nodes.h"

namespace kiln::fusion {

using ir::ScalarOp;

namespace {

// Nodes of the longest access's indices.
uint64_t LongestIndices(const ir::Kernel& kernel) {
  uint64_t most = 0;
  for (const ir::Phase& phase : kernel.phases) {
    for (const ir::Inst& inst : phase.body) most = std::max(most, ir::IndexNodes(inst.indices));
  }
  return most;
}

}  // namespace

BodyCost CostOf(ir::Module& module, const ir::Kernel& kernel) {
  BodyCost cost;
  const double points = Points(*module.ints, kernel.outer);
  for (const ir::Phase& phase : kernel.phases) {
    for (const ir::Inst& inst : phase.body) {
      const double operation = Info(inst.op).cost;
      cost.operations += operation;
      cost.is_expensive |= operation >= 4;
      if (inst.op != ScalarOp::kLoad) continue;
      ++cost.loads;
      const double elements = BufferBytes(module, inst.buffer) /
                              static_cast<double>(DTypeSize(module.buffers[inst.buffer].dtype));
      if (2 * elements >= points) ++cost.large_loads;
    }
  }
  return cost;
}

bool IsPadding(const ir::Kernel& kernel) {
  if (!IsPointwise(kernel) || kernel.phases.size() != 1) return false;
  const ir::Inst *load = nullptr, *store = nullptr;
  int accesses = 0;
  for (const ir::Inst& inst : kernel.phases[0].body) {
    if (inst.op == ScalarOp::kLoad) load = &inst;
    if (inst.op == ScalarOp::kStore) store = &inst;
    accesses += inst.op == ScalarOp::kLoad || inst.op == ScalarOp::kStore ? 1 : 0;
  }
  // The mask comes before the only load, so it is made of the loops.
  return accesses == 2 && load != nullptr && store != nullptr && load->has_mask &&
         NumIndirect(*load) == 0 && NumIndirect(*store) == 0 && !store->accumulates &&
         store->operands.back() == load->result;
}

bool AreIndicesTooLong(const ir::Kernel& joined, const ir::Kernel& first,
                       const ir::Kernel& second) {
  const uint64_t nodes = LongestIndices(joined);
  return nodes > ir::kMostIndexNodes &&
         nodes > std::max(LongestIndices(first), LongestIndices(second));
}

}  // namespace kiln::fusion
