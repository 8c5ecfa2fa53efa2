#include "compiler/ir/module.h"

#include <utility>

namespace kiln::ir {

std::vector<IntExpr> Module::ContiguousStrides(const std::vector<IntExpr>& sizes) {
  std::vector<IntExpr> strides(sizes.size());
  IntExpr stride = ints->Const(1);
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    // As torch does: a dimension of size 0 counts as 1, so that strides stay positive.
    stride = ints->Mul(stride, ints->Max(sizes[i], ints->Const(1)));
  }
  return strides;
}

BufferId Module::AddBuffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(buffers.size()) - 1;
}

IntExpr NumElements(IntContext& ints, const Buffer& buffer) {
  return ints.Product(buffer.sizes);
}

IntExpr SizeBytes(IntContext& ints, const Buffer& buffer) {
  IntExpr last = ints.Const(0);
  IntExpr nonempty = ints.Const(1);  // 0 where some dimension is empty
  for (size_t i = 0; i < buffer.sizes.size(); ++i) {
    IntExpr size = buffer.sizes[i];
    last = ints.Add(last, ints.Mul(ints.Add(size, -1), buffer.strides[i]));
    nonempty = ints.Mul(nonempty, ints.Min(size, ints.Const(1)));
  }
  IntExpr span = ints.Mul(ints.Add(last, 1), nonempty);
  return ints.Mul(span, DTypeSize(buffer.dtype));
}

IntExpr LinearIndex(IntContext& ints, const Buffer& buffer, const std::vector<IntExpr>& indices) {
  IntExpr linear = ints.Const(0);
  for (size_t i = 0; i < indices.size(); ++i) {
    linear = ints.Add(linear, ints.Mul(indices[i], buffer.strides[i]));
  }
  return linear;
}

}  // namespace kiln::ir
