// Library steps: operators that the client executes itself.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// Appends a Library operation for `node`. Each tensor argument is passed with the strides that the
// graph records for it, copied into a buffer first where its view has others, so that the operator
// sees what eager execution would show it. Takes the results that are used. REQUIRES: none of them
// is a size.
absl::Status AddLibraryStep(LoweringState& state, const graph::Node& node);

// The window of `type`'s strides that `view` is, or of a new copy of it.
ir::BufferWindow WindowOrCopy(LoweringState& state, NodeContext& context, const View& view,
                              const graph::TensorType& type);

}  // namespace kiln::lowering
