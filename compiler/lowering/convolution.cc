// Convolution in one to three spatial dimensions, plain and transposed.
#include "compiler/lowering/convolution.h"

#include <optional>
#include <vector>

#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {

using enum ir::ScalarOp;
using ir::IntExpr;

absl::StatusOr<Convolution> ReadConvolution(NodeContext& n, const View& weight,
                                            size_t first_argument) {
  Convolution c;
  const size_t rank = weight.sizes.size();
  if (rank < 3 || rank > 5) return n.Decline("other than 1 to 3 spatial dimensions");
  if (!IsFloat(weight.dtype)) return n.Decline("of these element types");
  const size_t a = first_argument;
  KILN_ASSIGN_OR_RETURN(c.window.stride, n.SpatialList(a, "stride", rank - 2, 1));
  KILN_ASSIGN_OR_RETURN(c.window.padding, n.SpatialList(a + 1, "padding", rank - 2, 0));
  KILN_ASSIGN_OR_RETURN(c.window.dilation, n.SpatialList(a + 2, "dilation", rank - 2, 1));
  KILN_ASSIGN_OR_RETURN(c.is_transposed, n.Bool(a + 3, "transposed", false));
  KILN_ASSIGN_OR_RETURN(c.groups, n.ConstInt(a + 5, "groups", 1));
  for (size_t d = 0; d < rank; ++d) {
    if (!weight.sizes[d].is_const()) return n.Decline("a weight of symbolic size");
    if (d >= 2) c.window.kernel.push_back(weight.sizes[d].value());
  }
  for (size_t d = 0; d < rank - 2; ++d) {
    if (c.window.stride[d] < 1 || c.window.dilation[d] < 1) {
      return n.BadGraph("a stride or dilation of 0", "1 or more");
    }
  }
  const int64_t total_out = weight.sizes[0].value();
  if (c.groups < 1 || total_out % c.groups != 0) {
    return n.BadGraph("the groups do not divide the weight's channels", "a divisor");
  }
  c.in_channels = weight.sizes[1].value();
  c.out_channels = total_out / c.groups;
  c.compute = ComputeType(weight.dtype);
  return c;
}

absl::Status CheckConvolution(NodeContext& n, const Convolution& c, const View& image,
                              const View& out) {
  const size_t rank = c.window.kernel.size() + 2;
  if (image.sizes.size() != rank || out.sizes.size() != rank) {
    return n.BadGraph("operands and result of different ranks", "equal ranks");
  }
  ir::IntContext& ints = n.ints();
  const IntExpr in = ints.Const(c.groups * c.in_channels);
  const IntExpr outs = ints.Const(c.groups * c.out_channels);
  KILN_RETURN_IF_ERROR(n.CheckSizes({image.sizes[1]}, {in}, "the channels"));
  return n.CheckSizes({out.sizes[0], out.sizes[1]}, {image.sizes[0], outs}, "the result");
}

void EmitConvolution(NodeContext& n, const Convolution& c, const View& image, const View& weight,
                     const View& out) {
  ir::IntContext& ints = n.ints();
  const size_t spatial = out.sizes.size() - 2;
  Ints outer_sizes{out.sizes[0], ints.Const(c.groups), ints.Const(c.out_channels)};
  outer_sizes.insert(outer_sizes.end(), out.sizes.begin() + 2, out.sizes.end());
  Ints inner_sizes{ints.Const(c.in_channels)};
  inner_sizes.insert(inner_sizes.end(), weight.sizes.begin() + 2, weight.sizes.end());

  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(outer_sizes);
  const Ints inner = k.StartPhase(inner_sizes);
  const IntExpr out_channel = ints.Add(ints.Mul(outer[1], c.out_channels), outer[2]);
  Ints at_weight{out_channel, inner[0]};
  Ints at_image{outer[0], ints.Add(ints.Mul(outer[1], c.in_channels), inner[0])};
  Ints at_out{outer[0], out_channel};
  for (size_t d = 0; d < spatial; ++d) {
    at_weight.push_back(inner[d + 1]);
    at_image.push_back(WindowIndex(ints, c.window, d, outer[d + 3], inner[d + 1]));
    at_out.push_back(outer[d + 3]);
  }
  const Scalar factor = k.Cast(k.Load(weight, at_weight), c.compute);
  const Scalar mask = InsideMask(k, image.sizes, at_image);
  const Scalar element = k.Cast(k.LoadMasked(image, at_image, mask, 0), c.compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, factor, element));
  k.StartPhase();
  k.Store(out, at_out, sum);
  // One output channel a group leaves nothing to share among a block's loads.
  const bool is_blocked = c.out_channels > 1 && c.in_channels * c.window.Volume() > 1;
  k.Finish(is_blocked ? ir::Schedule::kContraction : ir::Schedule::kLoops);
}

namespace {

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
absl::Status LowerConvolution(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View input, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const View weight, n.Tensor(1, "weight"));
  KILN_ASSIGN_OR_RETURN(const std::optional<View> bias, n.OptionalTensor(2, "bias"));
  KILN_ASSIGN_OR_RETURN(const Convolution c, ReadConvolution(n, weight, 3));
  if (input.dtype != weight.dtype) return n.Decline("of these element types");
  const View out = bias ? n.NewTempLike(0, c.compute) : n.NewResult(0);
  KILN_RETURN_IF_ERROR(c.is_transposed ? CheckConvolution(n, c, out, input)
                                       : CheckConvolution(n, c, input, out));
  if (bias) KILN_RETURN_IF_ERROR(n.CheckSizes(bias->sizes, {out.sizes[1]}, "the bias"));
  if (c.is_transposed) {
    EmitImage(n, c, input, weight, out);
  } else {
    EmitConvolution(n, c, input, weight, out);
  }
  if (!bias) {
    n.SetResult(0, out);
    return absl::OkStatus();
  }
  n.PointwiseResult(0, [&](KernelBuilder& k, const Ints& at) {
    const Scalar sum = k.Load(out, at);
    return k.Op(kAdd, sum, k.Cast(k.Load(*bias, {at[1]}), sum.dtype));
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterConvolution(Registry& registry) {
  registry["convolution.default"] = LowerConvolution;
}

}  // namespace kiln::lowering
