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
//
// An index that ranges cannot prove inside (as symbolic sizes make them) is evaluated at points of
// its loops instead, symbols at their hints: an illegal one may pass, a legal one never fails.
// Linear in the size of the module. Buffers without elements need no store; kernels with an empty
// loop need no legal indices.
absl::Status Verify(const Module& module);

}  // namespace kiln::ir
