// Kernels of one operator that a device runs as one launch.
#pragma once

#include <cstddef>

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// The module's operations from `begin` to `end`, kernels that one node became, as one repeat
// without steps, which takes their place: what lies between them, in buffers from number
// `first_buffer` on that neither a value of the graph nor another operation has, need not lie in
// memory. REQUIRES: all are kernels, and there is one at least; buffers from `first_buffer` on are
// the node's.
void RunTogether(LoweringState& state, size_t begin, size_t end, size_t first_buffer);

}  // namespace kiln::lowering
