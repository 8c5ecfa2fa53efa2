#include "compiler/lowering/window.h"

namespace kiln::lowering {

ir::IntExpr WindowIndex(ir::IntContext& ints, const Window& window, size_t d, ir::IntExpr out,
                        ir::IntExpr k) {
  const ir::IntExpr start = ints.Add(ints.Mul(out, window.stride[d]), -window.padding[d]);
  return ints.Add(start, ints.Mul(k, window.dilation[d]));
}

Scalar InsideMask(KernelBuilder& b, const Ints& sizes, const Ints& coordinates) {
  Scalar mask;
  for (size_t d = 0; d < sizes.size(); ++d) {
    b.AddBounds(coordinates[d], b.ints().Const(0), sizes[d], mask);
  }
  return mask;
}

}  // namespace kiln::lowering
