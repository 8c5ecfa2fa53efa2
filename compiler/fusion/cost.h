// What a piece of a kernel costs to compute again. Private to compiler/fusion.
#pragma once

#include "compiler/ir/module.h"

namespace kiln::fusion {

// Of one instruction, in simple vector operations; 0 for constants, casts, indices and memory.
double OperationCost(const ir::Inst& inst);

struct BodyCost {
  double operations = 0;
  int loads = 0;
  int large_loads = 0;        // of buffers with at least half as many elements as there are points
  bool is_expensive = false;  // has an operation worth more than a store and a load
};

// Of a pointwise kernel, for one point.
BodyCost CostOf(ir::Module& module, const ir::Kernel& kernel);

// Nodes of the longest list of indices among the kernel's instructions, written out as trees.
uint64_t IndexNodes(const ir::Kernel& kernel);
// Indices that fusion composes beyond this cost more than a buffer between the kernels; `nodes` are
// the kernels' own.
bool AreIndicesTooLong(const ir::Kernel& joined, uint64_t nodes);

}  // namespace kiln::fusion
