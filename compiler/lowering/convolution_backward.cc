// The gradients of a convolution, all three native whatever the shape: over ResNet-50's
// convolutions one thread of an EPYC (Zen 5) takes 0.75 (batch 1) and 0.89 (batch 4) of the time of
// ATen's convolution_backward (oneDNN) for input and weight together. By class, batch 1 to 4: 1x1
// 0.5 to 1.0; 3x3 0.5 to 1.4; 3x3 with stride 2, which pads its taps to whole phases, 0.7 to 1.7;
// the first one, 7x7 on 3 channels, 1.0 to 1.5.
#include <vector>

#include "compiler/lowering/convolution.h"
#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask) -> (grad_input, grad_weight, grad_bias)
absl::Status LowerConvolutionBackward(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View grad, n.Tensor(0, "grad_output"));
  KILN_ASSIGN_OR_RETURN(const View input, n.Tensor(1, "input"));
  KILN_ASSIGN_OR_RETURN(const View weight, n.Tensor(2, "weight"));
  KILN_ASSIGN_OR_RETURN(const Convolution c, ReadConvolution(n, weight, 4));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> wanted, n.ConstIntList(10, "output_mask"));
  if (wanted.size() != 3 || n.num_results() != 3) return n.BadGraph("its results", "three");
  if (input.dtype != weight.dtype || grad.dtype != weight.dtype) {
    return n.Decline("of these element types");
  }
  // ATen's result has no channels then, whatever the weight's sizes say.
  if (IsEmpty(weight.sizes)) return n.Decline("of a weight without elements");
  const View& image = c.is_transposed ? grad : input;
  const View& out = c.is_transposed ? input : grad;
  KILN_RETURN_IF_ERROR(CheckConvolution(n, c, image, out));
  const bool is_empty = IsEmpty(grad.sizes) || IsEmpty(input.sizes);
  const auto is_wanted = [&](size_t i) {
    return wanted[i] != 0 && n.HasResult(i) && n.ResultUsed(i);
  };
  const auto make = [&](size_t i, const View& like, const auto& emit) -> absl::Status {
    if (!is_wanted(i) || IsEmpty(like.sizes)) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(i).sizes, like.sizes, "the gradient"));
    if (is_empty) {  // a sum of nothing
      n.PointwiseResult(
          i, [&](KernelBuilder& b, const Ints&) { return b.Const(n.Result(i).dtype, 0.0); });
      return absl::OkStatus();
    }
    const View result = n.NewResult(i);
    emit(result);
    n.SetResult(i, result);
    return absl::OkStatus();
  };
  KILN_RETURN_IF_ERROR(make(0, input, [&](const View& result) {
    if (c.is_transposed) return EmitConvolution(n, c, grad, weight, result);
    EmitImage(n, c, grad, weight, result);
  }));
  KILN_RETURN_IF_ERROR(
      make(1, weight, [&](const View& result) { EmitWeight(n, c, out, image, result); }));
  if (!is_wanted(2)) return absl::OkStatus();
  std::vector<int> dims{0};
  for (size_t d = 2; d < grad.sizes.size(); ++d) dims.push_back(static_cast<int>(d));
  return ReduceInto(
      n, 2, grad, dims, ir::ReduceKind::kSum,
      [&](KernelBuilder& b, Scalar x) { return b.Cast(x, c.compute); }, Unchanged);
}

}  // namespace

void RegisterConvolutionBackward(Registry& registry) {
  registry["convolution_backward.default"] = LowerConvolutionBackward;
}

}  // namespace kiln::lowering
