// Layer, group and batch normalization.
#include <functional>
#include <optional>
#include <vector>

#include "compiler/ir/fixed_values.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

// A normalization over groups of elements: layer norm and group norm are both of this form.
struct Groups {
  Ints outer;  // one group a point
  Ints inner;  // the group's elements
  // Coordinates of an element in the input and the output.
  std::function<Ints(const Ints& outer, const Ints& inner)> element;
  // The affine parameters of an element; either may be absent.
  std::optional<View> weight, bias;
  std::function<Ints(const Ints& outer, const Ints& inner)> parameter;
  double epsilon = 0;
};

struct Statistics {
  Scalar mean;
  Scalar rstd;
};

Scalar EmitMean(KernelBuilder& b, const View& x, const Groups& g, const Ints& outer) {
  const Ints inner = b.StartPhase(g.inner);
  const Scalar sum = b.Reduce(ReduceKind::kSum, b.Widen(b.Load(x, g.element(outer, inner))));
  b.StartPhase();
  return b.Op(kDiv, sum, b.Cast(b.Index(b.ints().Product(g.inner)), sum.dtype));
}

// 1 / sqrt(variance + epsilon), from the deviations: two passes lose no digits.
Statistics EmitStatistics(KernelBuilder& b, const View& x, const Groups& g, const Ints& outer) {
  const Scalar mean = EmitMean(b, x, g, outer);
  const Ints inner = b.StartPhase(g.inner);
  const Scalar deviation = b.Op(kSub, b.Widen(b.Load(x, g.element(outer, inner))), mean);
  const Scalar squares = b.Reduce(ReduceKind::kSum, b.Op(kMul, deviation, deviation));
  b.StartPhase();
  const Scalar count = b.Cast(b.Index(b.ints().Product(g.inner)), mean.dtype);
  const Scalar variance = b.Op(kDiv, squares, count);
  return {mean, b.Op(kRsqrt, b.Op(kAdd, variance, g.epsilon))};
}

void EmitNormalized(KernelBuilder& b, const View& x, const Groups& g, const Ints& outer,
                    const Statistics& stats, const View& out) {
  const Ints inner = b.StartPhase(g.inner);
  const Ints at = g.element(outer, inner);
  Scalar value = b.Op(kSub, b.Widen(b.Load(x, at)), stats.mean);
  value = b.Op(kMul, value, stats.rstd);
  if (g.weight) {
    const Scalar weight = b.Load(*g.weight, g.parameter(outer, inner));
    value = b.Op(kMul, value, b.Cast(weight, value.dtype));
  }
  if (g.bias) {
    const Scalar bias = b.Load(*g.bias, g.parameter(outer, inner));
    value = b.Op(kAdd, value, b.Cast(bias, value.dtype));
  }
  b.Store(out, at, value);
}

// Results: normalized, mean, rstd. Where only the first is used it takes one kernel; else the
// statistics are buffers of their own that the last kernel reads: those of the results, or where
// these are of a narrow type, which would cost the difference from a large mean its digits, wider
// ones.
absl::Status EmitNormalization(NodeContext& n, const View& x, const Groups& g) {
  KILN_RETURN_IF_ERROR(n.CheckSizes(x.sizes, n.Result(0).sizes, "the argument"));
  const bool keep_statistics = n.ResultUsed(1) || n.ResultUsed(2);
  const View out = n.NewResult(0);
  if (!keep_statistics) {
    KernelBuilder b = n.NewKernel();
    const Ints outer = b.Outer(g.outer);
    EmitNormalized(b, x, g, outer, EmitStatistics(b, x, g, outer), out);
    b.Finish();
    n.SetResult(0, out);
    return absl::OkStatus();
  }
  View stats[2];
  for (const size_t i : {1, 2}) {
    const IntExpr have = n.ints().Product(n.Result(i).sizes);
    const IntExpr want = n.ints().Product(g.outer);
    if (have.is_const() && want.is_const() && have != want) {
      return n.CheckSizes({have}, {want}, "a statistic");
    }
    const View result = n.NewResult(i);
    const View own = Reshape(n.ints(), result, g.outer);
    const DType wide = ComputeType(result.dtype);
    stats[i - 1] = wide == result.dtype ? own : n.NewTemp(g.outer, wide);
    KernelBuilder b = n.NewKernel();
    const Ints outer = b.Outer(g.outer);
    b.Store(stats[i - 1], outer,
            i == 1 ? EmitMean(b, x, g, outer) : EmitStatistics(b, x, g, outer).rstd);
    b.Finish();
    if (wide != result.dtype) {
      n.Pointwise(own, [&](KernelBuilder& k, const Ints& at) { return k.Load(stats[i - 1], at); });
    }
    n.SetResult(i, result);
  }
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(g.outer);
  b.StartPhase();
  const Scalar mean = b.Widen(b.Load(stats[0], outer));
  EmitNormalized(b, x, g, outer, {mean, b.Widen(b.Load(stats[1], outer))}, out);
  b.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// native_layer_norm(input, normalized_shape, weight, bias, eps)
absl::Status LowerLayerNorm(NodeContext& n) {
  KILN_RETURN_IF_ERROR(n.CheckResults(3));
  KILN_ASSIGN_OR_RETURN(const View x, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const Ints shape, n.IntList(1, "normalized_shape"));
  if (shape.size() > x.sizes.size()) {
    return n.BadGraph("more normalized dimensions than the input has", "as many or fewer");
  }
  if (!IsFloat(x.dtype)) return n.Decline("of integers");
  Groups g;
  g.outer.assign(x.sizes.begin(), x.sizes.end() - shape.size());
  g.inner.assign(x.sizes.end() - shape.size(), x.sizes.end());
  KILN_RETURN_IF_ERROR(n.CheckSizes(shape, g.inner, "'normalized_shape'"));
  KILN_ASSIGN_OR_RETURN(g.weight, n.OptionalTensor(2, "weight"));
  KILN_ASSIGN_OR_RETURN(g.bias, n.OptionalTensor(3, "bias"));
  KILN_ASSIGN_OR_RETURN(g.epsilon, n.Float(4, "eps", 1e-5));
  for (const std::optional<View>& parameter : {g.weight, g.bias}) {
    if (parameter) KILN_RETURN_IF_ERROR(n.CheckSizes(parameter->sizes, g.inner, "a parameter"));
  }
  g.element = [](const Ints& outer, const Ints& inner) {
    Ints at = outer;
    at.insert(at.end(), inner.begin(), inner.end());
    return at;
  };
  g.parameter = [](const Ints&, const Ints& inner) { return inner; };
  return EmitNormalization(n, x, g);
}

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
absl::Status LowerGroupNorm(NodeContext& n) {
  KILN_RETURN_IF_ERROR(n.CheckResults(3));
  KILN_ASSIGN_OR_RETURN(const View x, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const int64_t groups, n.ConstInt(6, "group", 1));
  if (x.sizes.size() < 2 || groups < 1) return n.BadGraph("its rank or groups", "rank 2 or more");
  const IntExpr channels = x.sizes[1];
  if (!channels.is_const()) return n.Decline("of symbolic channels");
  if (channels.value() % groups != 0) {
    return n.BadGraph("the groups do not divide the channels", "a divisor");
  }
  if (!IsFloat(x.dtype)) return n.Decline("of integers");
  const IntExpr in_group = n.ints().Const(channels.value() / groups);
  Groups g;
  g.outer = {x.sizes[0], n.ints().Const(groups)};
  g.inner = {in_group};
  g.inner.insert(g.inner.end(), x.sizes.begin() + 2, x.sizes.end());
  KILN_ASSIGN_OR_RETURN(g.weight, n.OptionalTensor(1, "weight"));
  KILN_ASSIGN_OR_RETURN(g.bias, n.OptionalTensor(2, "bias"));
  KILN_ASSIGN_OR_RETURN(g.epsilon, n.Float(7, "eps", 1e-5));
  for (const std::optional<View>& parameter : {g.weight, g.bias}) {
    if (parameter) KILN_RETURN_IF_ERROR(n.CheckSizes(parameter->sizes, {channels}, "a parameter"));
  }
  const auto channel = [&n, in_group](const Ints& outer, const Ints& inner) {
    return n.ints().Add(n.ints().Mul(outer[1], in_group), inner[0]);
  };
  g.element = [channel](const Ints& outer, const Ints& inner) {
    Ints at{outer[0], channel(outer, inner)};
    at.insert(at.end(), inner.begin() + 1, inner.end());
    return at;
  };
  g.parameter = [channel](const Ints& outer, const Ints& inner) {
    return Ints{channel(outer, inner)};
  };
  return EmitNormalization(n, x, g);
}

// _native_batch_norm_legit_no_training(input, weight, bias, mean, var, momentum, eps)
absl::Status LowerBatchNormInference(NodeContext& n) {
  KILN_RETURN_IF_ERROR(n.CheckResults(3));
  KILN_ASSIGN_OR_RETURN(const View x, n.Tensor(0, "input"));
  KILN_ASSIGN_OR_RETURN(const std::optional<View> weight, n.OptionalTensor(1, "weight"));
  KILN_ASSIGN_OR_RETURN(const std::optional<View> bias, n.OptionalTensor(2, "bias"));
  KILN_ASSIGN_OR_RETURN(const View mean, n.Tensor(3, "running_mean"));
  KILN_ASSIGN_OR_RETURN(const View variance, n.Tensor(4, "running_var"));
  KILN_ASSIGN_OR_RETURN(const double epsilon, n.Float(6, "eps", 1e-5));
  if (x.sizes.size() < 2) return n.BadGraph("an input of too few dimensions", "2 or more");
  if (!IsFloat(x.dtype)) return n.Decline("of integers");
  KILN_RETURN_IF_ERROR(n.CheckSizes(x.sizes, n.Result(0).sizes, "the argument"));
  for (const std::optional<View>& parameter :
       {weight, bias, std::optional(mean), std::optional(variance)}) {
    if (!parameter) continue;
    KILN_RETURN_IF_ERROR(n.CheckSizes(parameter->sizes, {x.sizes[1]}, "a parameter"));
  }
  const DType compute = ComputeType(x.dtype);
  const auto scale_at = [&](KernelBuilder& b, const Ints& channel) {
    const auto load = [&](const View& view) { return b.Cast(b.Load(view, channel), compute); };
    const Scalar rstd = b.Op(kRsqrt, b.Op(kAdd, load(variance), epsilon));
    return weight ? b.Op(kMul, rstd, load(*weight)) : rstd;
  };
  // Of parameters it is a kernel of its own, which runs once for many calls.
  std::optional<View> scale;
  const auto is_fixed = [&](const View& view) { return IsFixed(n.module().buffers[view.buffer]); };
  if (is_fixed(variance) && (!weight || is_fixed(*weight))) {
    scale = n.NewTemp({x.sizes[1]}, compute);
    KernelBuilder b = n.NewKernel();
    const Ints channel = b.Outer(scale->sizes);
    b.StartPhase();
    b.Store(*scale, channel, scale_at(b, channel));
    b.Finish();
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Ints channel{at[1]};
    const auto load = [&](const View& view) { return b.Cast(b.Load(view, channel), compute); };
    Scalar value = b.Op(kSub, b.Widen(b.Load(x, at)), load(mean));
    value = b.Op(kMul, value, scale ? b.Load(*scale, channel) : scale_at(b, channel));
    return bias ? b.Op(kAdd, value, load(*bias)) : value;
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterNormalization(Registry& registry) {
  registry["native_layer_norm.default"] = LowerLayerNorm;
  registry["native_group_norm.default"] = LowerGroupNorm;
  registry["_native_batch_norm_legit_no_training.default"] = LowerBatchNormInference;
}

}  // namespace kiln::lowering
