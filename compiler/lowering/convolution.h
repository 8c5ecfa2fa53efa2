// Convolution's three products, which the operator, its transposed form and their gradients share.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "compiler/lowering/node_context.h"
#include "compiler/lowering/window.h"

namespace kiln::lowering {

// out[n, g*oc + o, q..] = sum over (i, k..) of
//     weight[g*oc + o, i, k..] * image[n, g*ic + i, q*stride + k*dilation - padding]
// with 1 to 3 spatial dimensions. A transposed convolution is this with out given and image made.
struct Convolution {
  Window window;
  int64_t groups = 1;
  int64_t in_channels = 1;   // ic: the image's in one group
  int64_t out_channels = 1;  // oc: the result's in one group
  DType compute = DType::kF32;
  bool is_transposed = false;
};

// Where the arguments stride, padding, dilation, transposed, output_padding and groups begin.
absl::StatusOr<Convolution> ReadConvolution(NodeContext& n, const View& weight,
                                            size_t first_argument);

// INVALID_ARGUMENT unless `image` and `out` have the channels, ranks and batch of `c`.
absl::Status CheckConvolution(NodeContext& n, const Convolution& c, const View& image,
                              const View& out);

// Kernels that compute one of the three from the other two, into the whole buffer that the last
// view is.
void EmitConvolution(NodeContext& n, const Convolution& c, const View& image, const View& weight,
                     const View& out);
void EmitImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
               const View& image);
void EmitWeight(NodeContext& n, const Convolution& c, const View& out, const View& image,
                const View& weight);

}  // namespace kiln::lowering
