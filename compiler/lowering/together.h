// Kernels of one operator that a device runs as one launch.
#pragma once

#include <cstddef>

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// The module's operations from number `first` on, kernels that one node became, as one repeat
// without steps, which takes their place: what lies between them, in buffers from number
// `first_buffer` on that no value of the graph is, need not lie in memory.
// REQUIRES: all are kernels, and there is one at least.
void RunTogether(LoweringState& state, size_t first, size_t first_buffer);

}  // namespace kiln::lowering
