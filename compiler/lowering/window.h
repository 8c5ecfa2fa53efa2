// Sliding windows over spatial dimensions: what convolution and pooling share.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/lowering/kernel_builder.h"

namespace kiln::lowering {

// One item a spatial dimension, outermost first.
struct Window {
  std::vector<int64_t> kernel, stride, padding, dilation;

  int64_t Volume() const {
    int64_t volume = 1;
    for (const int64_t size : kernel) volume *= size;
    return volume;
  }
};

// Where offset `k` of the window at `out` lies in dimension `d`: out*stride + k*dilation - padding.
ir::IntExpr WindowIndex(ir::IntContext& ints, const Window& window, size_t d, ir::IntExpr out,
                        ir::IntExpr k);

// Whether all coordinates lie inside `sizes`; no value where the ranges prove it.
Scalar InsideMask(KernelBuilder& b, const Ints& sizes, const Ints& coordinates);

}  // namespace kiln::lowering
