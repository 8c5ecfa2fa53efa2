// What poolings and their gradients share.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "compiler/lowering/node_context.h"
#include "compiler/lowering/window.h"

namespace kiln::lowering {

// The arguments kernel_size, stride, padding, of which the first is number `first`; dilation 1.
absl::StatusOr<Window> ReadPoolWindow(NodeContext& n, size_t first, size_t spatial);

// How many elements the mean at the output's spatial coordinates `out` is of: the window cut to the
// padded input, or to the input, whose spatial sizes are `sizes`.
ir::IntExpr WindowCount(ir::IntContext& ints, const Window& window, const Ints& sizes,
                        const Ints& out, bool with_padding);

// Adaptive pooling takes output o of `out` from [floor(o*in/out), ceil((o+1)*in/out)) of `in`; this
// is that range, and how long it can be. The outputs that read input i are the same with the roles
// of in and out exchanged.
struct AdaptiveRange {
  ir::IntExpr start, end;
};
AdaptiveRange AdaptiveRangeOf(ir::IntContext& ints, ir::IntExpr o, ir::IntExpr in, ir::IntExpr out);
ir::IntExpr AdaptiveExtent(ir::IntContext& ints, ir::IntExpr in, ir::IntExpr out);

}  // namespace kiln::lowering
