// What a graph leaves behind: its outputs and the inputs that it writes in place.
#pragma once

#include "absl/status/status.h"
#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// Gives every output of the graph a window with the recorded sizes and strides. A temporary buffer
// becomes an output buffer where a window on it serves; several outputs view it where they view one
// tensor in eager mode, and only then, and views of an input are windows on it (such as the weights
// that a backward graph reads); otherwise the value is copied. UNIMPLEMENTED where it would take a
// library step that `library_steps` forbids.
absl::Status AddOutputs(LoweringState& state, bool library_steps);

// Appends the kernels that store into mutated inputs, after everything else. Each copies a
// temporary buffer of its input's layout, which memory::WriteInputsInPlace may put into the input
// itself; every value was computed, or copied, from the inputs as they were. UNIMPLEMENTED for
// types that kernels do not know.
absl::Status AddMutations(LoweringState& state);

}  // namespace kiln::lowering
