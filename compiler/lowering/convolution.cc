// Convolution in one to three spatial dimensions.
#include <optional>
#include <vector>

#include "compiler/lowering/registry.h"
#include "compiler/lowering/window.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

struct Convolution {
  View input;   // [n, groups * ic, spatial..]
  View weight;  // [groups * oc, ic, kernel..]
  std::optional<View> bias;
  Window window;
  int64_t groups = 1;
  int64_t in_channels = 1;   // of one group
  int64_t out_channels = 1;  // of one group
};

absl::Status CheckShapes(NodeContext& n, const Convolution& c) {
  const Ints& out = n.Result(0).sizes;
  const size_t rank = c.input.sizes.size();
  if (out.size() != rank || c.weight.sizes.size() != rank) {
    return n.BadGraph("operands and result of different ranks", "equal ranks");
  }
  if (!IsFloat(c.input.dtype) || c.input.dtype != c.weight.dtype) {
    return n.Decline("of these element types");
  }
  for (const IntExpr size : {c.input.sizes[1], c.weight.sizes[0], c.weight.sizes[1]}) {
    if (!size.is_const()) return n.Decline("of symbolic channels");
  }
  const int64_t total_out = c.weight.sizes[0].value();
  if (c.groups < 1 || total_out % c.groups != 0 ||
      c.input.sizes[1].value() != c.groups * c.weight.sizes[1].value()) {
    return n.BadGraph("the groups do not fit the channels", "groups * weight.size(1) channels");
  }
  KILN_RETURN_IF_ERROR(
      n.CheckSizes({out[0], out[1]}, {c.input.sizes[0], c.weight.sizes[0]}, "the result"));
  if (c.bias) KILN_RETURN_IF_ERROR(n.CheckSizes(c.bias->sizes, {c.weight.sizes[0]}, "the bias"));
  return absl::OkStatus();
}

// sum over (ic, kernel..) of weight * input, outer loops (n, groups, oc, spatial..).
void EmitProduct(NodeContext& n, const Convolution& c, const View& out) {
  ir::IntContext& ints = n.ints();
  const size_t spatial = out.sizes.size() - 2;
  Ints outer_sizes{out.sizes[0], ints.Const(c.groups), ints.Const(c.out_channels)};
  outer_sizes.insert(outer_sizes.end(), out.sizes.begin() + 2, out.sizes.end());
  Ints inner_sizes{ints.Const(c.in_channels)};
  inner_sizes.insert(inner_sizes.end(), c.weight.sizes.begin() + 2, c.weight.sizes.end());

  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(outer_sizes);
  const Ints inner = k.StartPhase(inner_sizes);
  const IntExpr out_channel = ints.Add(ints.Mul(outer[1], c.out_channels), outer[2]);
  Ints at_weight{out_channel, inner[0]};
  Ints at_input{outer[0], ints.Add(ints.Mul(outer[1], c.in_channels), inner[0])};
  Ints at_out{outer[0], out_channel};
  for (size_t d = 0; d < spatial; ++d) {
    at_weight.push_back(inner[d + 1]);
    at_input.push_back(WindowIndex(ints, c.window, d, outer[d + 3], inner[d + 1]));
    at_out.push_back(outer[d + 3]);
  }
  const DType compute = ComputeType(c.input.dtype);
  const Scalar weight = k.Cast(k.Load(c.weight, at_weight), compute);
  const Scalar mask = InsideMask(k, c.input.sizes, at_input);
  const Scalar input = k.Cast(k.LoadMasked(c.input, at_input, mask, 0), compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, weight, input));
  k.StartPhase();
  k.Store(out, at_out, sum);
  // One output channel a group leaves nothing to share among a block's loads.
  const bool is_blocked = c.out_channels > 1 && c.in_channels * c.window.Volume() > 1;
  k.Finish(is_blocked ? ir::Schedule::kContraction : ir::Schedule::kLoops);
}

absl::StatusOr<Convolution> ReadArguments(NodeContext& n) {
  Convolution c;
  KILN_ASSIGN_OR_RETURN(c.input, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(c.weight, n.Tensor(1, "weight"));
  KILN_ASSIGN_OR_RETURN(c.bias, n.OptionalTensor(2, "bias"));
  if (c.input.sizes.size() < 3 || c.input.sizes.size() > 5) {
    return n.Decline("other than 1 to 3 spatial dimensions");
  }
  const size_t spatial = c.input.sizes.size() - 2;
  KILN_ASSIGN_OR_RETURN(c.window.stride, n.SpatialList(3, "stride", spatial, 1));
  KILN_ASSIGN_OR_RETURN(c.window.padding, n.SpatialList(4, "padding", spatial, 0));
  KILN_ASSIGN_OR_RETURN(c.window.dilation, n.SpatialList(5, "dilation", spatial, 1));
  KILN_ASSIGN_OR_RETURN(const bool transposed, n.Bool(6, "transposed", false));
  if (transposed) return n.Decline("transposed");
  KILN_ASSIGN_OR_RETURN(c.groups, n.ConstInt(8, "groups", 1));
  KILN_RETURN_IF_ERROR(CheckShapes(n, c));
  for (size_t d = 0; d < spatial; ++d) {
    if (!c.weight.sizes[d + 2].is_const()) return n.Decline("a kernel of symbolic size");
    c.window.kernel.push_back(c.weight.sizes[d + 2].value());
  }
  c.in_channels = c.weight.sizes[1].value();
  c.out_channels = c.weight.sizes[0].value() / c.groups;
  return c;
}

absl::Status LowerConvolution(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const Convolution c, ReadArguments(n));
  if (!c.bias) {
    const View out = n.NewResult(0);
    EmitProduct(n, c, out);
    n.SetResult(0, out);
    return absl::OkStatus();
  }
  const View product = n.NewTempLike(0, ComputeType(c.input.dtype));
  EmitProduct(n, c, product);
  n.PointwiseResult(0, [&](KernelBuilder& k, const Ints& at) {
    const Scalar sum = k.Load(product, at);
    return k.Op(kAdd, sum, k.Cast(k.Load(*c.bias, {at[1]}), sum.dtype));
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterConvolution(Registry& registry) {
  registry["convolution.default"] = LowerConvolution;
}

}  // namespace kiln::lowering
