// The one verifier of the loop IR.
#pragma once

#include "absl/status/status.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// Checks every rule that module.h and scalar_op.h state: arity and types of instructions, values
// defined before use and visible where used, loop variables in scope, as many indices as
// dimensions, every index provably inside its dimension or marked indirect or masked, one operation
// storing each temp and output buffer before it is read, the shape of contractions, outputs on
// existing buffers. INTERNAL with the kernel and the instruction printed.
absl::Status Verify(const Module& module);

}  // namespace kiln::ir
