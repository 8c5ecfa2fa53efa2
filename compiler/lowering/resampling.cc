// Resampling over spatial dimensions (nearest, linear, cubic) and its gradients.
//
// All but nearest are sums over one dimension at a time: element o of the result is the sum of
// weight(o, i) * input[i] over the few inputs i near its source position, and element i of the
// gradient the sum of weight(o, i) * gradient[o] over the few outputs o that read it. The weights
// of a dimension are a small table, made once; nothing is written twice.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

// How far from its source position an output reads is the enumerator's value, but for kNearest.
enum class Filter : uint8_t { kNearest = 0, kLinear = 1, kCubic = 2 };

// One spatial dimension.
struct Axis {
  IntExpr in, out;
  double scale = 0;  // out / in as the caller gave it; 0: he did not
  bool align_corners = false;
  // out / in, or (out - 1) / (in - 1) with corners aligned, as far as integers tell.
  IntExpr numerator, denominator;
};

struct Resampling {
  Filter filter = Filter::kLinear;
  bool is_exact = false;  // nearest: from the middle of an output element, not from its start
  std::vector<Axis> axes;
};

// Whether every output is the input at the same place. ATen's linear kernels copy a dimension that
// keeps its size, whatever the factor.
bool IsIdentity(const Resampling& r, const Axis& axis) {
  return axis.in == axis.out && (r.filter == Filter::kLinear || axis.scale == 0 || axis.scale == 1);
}

absl::Status SetRatio(NodeContext& n, Axis& axis) {
  ir::IntContext& ints = n.ints();
  const int64_t margin = axis.align_corners ? 1 : 0;
  if (axis.in.range().min <= margin && !axis.in.is_const(1))
    return n.Decline("of that few elements");
  if (axis.out.range().min <= margin && !axis.out.is_const(1))
    return n.Decline("to so few elements");
  axis.numerator = ints.Add(axis.out, -margin);
  axis.denominator = ints.Add(axis.in, -margin);
  if (axis.align_corners) {
    // One of them has a single element, and every output the source position 0.
    if (axis.in.is_const(1) || axis.out.is_const(1)) {
      axis.numerator = axis.out;
      axis.denominator = ints.Const(1);
    }
    return absl::OkStatus();
  }
  if (axis.scale == 0) return absl::OkStatus();
  constexpr int64_t kUnit = int64_t{1} << 32;
  if (axis.scale < 1.0 / 1024 || axis.scale > 1024) return n.Decline("by such a factor");
  const bool is_whole = axis.scale == std::floor(axis.scale);
  axis.denominator = ints.Const(is_whole ? 1 : kUnit);
  axis.numerator = ints.Const(std::llround(axis.scale * (is_whole ? 1 : kUnit)));
  // Outputs whose source lies beyond the input's end: their number has no bound here.
  if (axis.in.is_const() && axis.out.is_const() &&
      (static_cast<double>(axis.out.value()) - 0.5) / axis.scale - 0.5 >=
          static_cast<double>(axis.in.value())) {
    return n.Decline("to more elements than the factor makes");
  }
  return absl::OkStatus();
}

// The distance of two outputs' source positions, as ATen computes it: in the arithmetic's type.
Scalar Step(KernelBuilder& b, const Axis& axis, DType compute) {
  const auto number = [&](IntExpr e) { return b.Cast(b.Index(e), compute); };
  if (!axis.align_corners) {
    if (axis.scale > 0) return b.Const(compute, 1 / axis.scale);
    return b.Op(kDiv, number(axis.in), number(axis.out));
  }
  if (axis.out.is_const(1)) return b.Const(compute, 0.0);
  return b.Op(kDiv, number(b.ints().Add(axis.in, -1)), number(b.ints().Add(axis.out, -1)));
}

// Where output `o` is taken from, between the input's elements.
Scalar SourcePosition(KernelBuilder& b, const Axis& axis, IntExpr o, DType compute) {
  const Scalar step = Step(b, axis, compute);
  const Scalar at = b.Cast(b.Index(o), compute);
  if (axis.align_corners) return b.Op(kMul, at, step);
  return b.Op(kSub, b.Op(kMul, b.Op(kAdd, at, 0.5), step), 0.5);
}

// Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -0.75; 0
// from a distance of 2 on.
Scalar CubicKernel(KernelBuilder& b, Scalar distance) {
  constexpr double kA = -0.75;
  const Scalar x = b.Op(kMin, b.Op(kAbs, distance), 2.0);
  const Scalar square = b.Op(kMul, x, x);
  const Scalar near_factor = b.Op(kSub, b.Op(kMul, x, kA + 2), kA + 3);
  const Scalar near_value = b.Op(kAdd, b.Op(kMul, near_factor, square), 1.0);
  const Scalar inner = b.Op(kMul, b.Op(kAdd, b.Op(kMul, b.Op(kSub, x, 5.0), x), 8.0), x);
  const Scalar far_value = b.Op(kMul, b.Op(kSub, inner, 4.0), kA);
  return b.Select(b.Op(kLe, x, 1.0), near_value, far_value);
}

// What input `i` counts for in output `o`.
Scalar Weight(KernelBuilder& b, const Resampling& r, const Axis& axis, IntExpr o, IntExpr i,
              DType compute) {
  Scalar source = SourcePosition(b, axis, o, compute);
  const Scalar own = b.Cast(b.Index(i), compute);
  if (r.filter == Filter::kLinear) {
    if (axis.scale != 0 && !(axis.in.is_const() && axis.out.is_const())) {  // as IsIdentity
      const Scalar keeps_size = b.Op(kEq, b.Index(axis.in), b.Index(axis.out));
      source = b.Select(keeps_size, b.Cast(b.Index(o), compute), source);
    }
    const Scalar last = b.Cast(b.Index(b.ints().Add(axis.in, -1)), compute);
    const Scalar inside = b.Op(kMin, b.Op(kMax, source, 0.0), last);
    const Scalar distance = b.Op(kAbs, b.Op(kSub, inside, own));
    return b.Op(kMax, b.Op(kSub, b.Const(compute, 1.0), distance), 0.0);
  }
  // An edge's element stands for the two beyond it as well.
  const auto kernel_at = [&](double offset) {
    return CubicKernel(b, b.Op(kSub, b.Op(kSub, source, own), offset));
  };
  const auto at_edge = [&](IntExpr edge, double direction) {
    const Scalar beyond = b.Op(kAdd, kernel_at(direction), kernel_at(2 * direction));
    return b.Select(b.Op(kEq, b.Index(i), b.Index(edge)), beyond, b.Const(compute, 0.0));
  };
  const Scalar edges =
      b.Op(kAdd, at_edge(b.ints().Const(0), -1), at_edge(b.ints().Add(axis.in, -1), 1));
  return b.Op(kAdd, kernel_at(0), edges);
}

// The elements that one element of a pass sums over: `count`, from first(element) on.
struct Taps {
  int64_t count = 0;
  std::function<IntExpr(IntExpr)> first;
};

// The inputs that an output reads.
Taps InputTaps(ir::IntContext& ints, const Resampling& r, const Axis& axis) {
  const int64_t reach = static_cast<int64_t>(r.filter);
  const IntExpr p = axis.numerator, q = axis.denominator;
  return {2 * reach, [&ints, axis, reach, p, q](IntExpr o) {
            const IntExpr source =
                axis.align_corners
                    ? ints.FloorDiv(ints.Mul(o, q), p)
                    : ints.FloorDiv(ints.Sub(ints.Mul(ints.Add(ints.Mul(o, 2), 1), q), p),
                                    ints.Mul(p, 2));
            return ints.Add(source, 1 - reach);
          }};
}

// The outputs that read an input: those whose source lies in (i - reach, i + reach). Their number
// is 0 where it is symbolic.
Taps OutputTaps(ir::IntContext& ints, const Resampling& r, const Axis& axis) {
  const int64_t reach = static_cast<int64_t>(r.filter);
  const IntExpr p = axis.numerator, q = axis.denominator;
  const IntExpr count = ints.CeilDiv(ints.Mul(p, 2 * reach), q);
  return {count.is_const() ? count.value() : 0, [&ints, axis, reach, p, q](IntExpr i) {
            const IntExpr from = ints.Add(i, -reach);
            const IntExpr last_before =
                axis.align_corners
                    ? ints.FloorDiv(ints.Mul(from, p), q)
                    : ints.FloorDiv(ints.Sub(ints.Mul(ints.Add(ints.Mul(from, 2), 1), p), q),
                                    ints.Mul(q, 2));
            return ints.Add(last_before, 1);
          }};
}

// The table of weights of a dimension: [tap, element].
View WeightTable(NodeContext& n, const Resampling& r, const Axis& axis, const Taps& taps,
                 bool is_gradient, DType compute) {
  const IntExpr elements = is_gradient ? axis.in : axis.out;
  const View table = n.NewTemp({n.ints().Const(taps.count), elements}, compute);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.Outer(table.sizes);
  b.StartPhase();
  const IntExpr other = b.ints().Add(taps.first(at[1]), at[0]);
  Scalar mask;
  b.AddBounds(other, b.ints().Const(0), is_gradient ? axis.out : axis.in, mask);
  Scalar weight = is_gradient ? Weight(b, r, axis, other, at[1], compute)
                              : Weight(b, r, axis, at[1], other, compute);
  if (mask.id != ir::kNoValue) weight = b.Select(mask, weight, b.Const(compute, 0.0));
  b.Store(table, at, weight);
  b.Finish(ir::Schedule::kPacking);
  return table;
}

// out = the sums along dimension `dim` of `from`.
void EmitPass(NodeContext& n, const View& from, const View& out, int dim, const View& table,
              const Taps& taps) {
  n.Pointwise(out, [&](KernelBuilder& b, const Ints& at) {
    Scalar sum;
    const IntExpr first = taps.first(at[dim]);
    for (int64_t tap = 0; tap < taps.count; ++tap) {
      const Scalar weight = b.Load(table, {b.ints().Const(tap), at[dim]});
      Ints source = at;
      source[dim] = b.ints().Add(first, tap);
      // Beyond the edges the weight is 0, and nothing is read.
      const Scalar mask = b.Op(kNe, weight, 0.0);
      const Scalar value = b.Cast(b.LoadMasked(from, source, mask, 0), weight.dtype);
      const Scalar term = b.Op(kMul, weight, value);
      sum = tap == 0 ? term : b.Op(kAdd, sum, term);
    }
    return sum;
  });
}

// Result 0 from `from`, a pass for each dimension. The last dimension is resampled while the others
// are small: first in a result that is larger than its argument, last in a gradient.
absl::Status EmitPasses(NodeContext& n, const Resampling& r, const View& from, bool is_gradient) {
  const DType compute = ComputeType(from.dtype);
  const size_t rank = from.sizes.size(), first = rank - r.axes.size();
  std::vector<size_t> order;
  for (size_t d = first; d < rank; ++d) {
    if (!IsIdentity(r, r.axes[d - first])) order.push_back(d);
  }
  if (!is_gradient) std::reverse(order.begin(), order.end());
  std::vector<Taps> taps;
  for (const size_t d : order) {
    taps.push_back(is_gradient ? OutputTaps(n.ints(), r, r.axes[d - first])
                               : InputTaps(n.ints(), r, r.axes[d - first]));
    if (taps.back().count < 1 || taps.back().count > 64) return n.Decline("by so large a factor");
  }
  if (order.empty()) return n.SetView(0, from);
  View current = from;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t d = order[i];
    const Axis& axis = r.axes[d - first];
    const View table = WeightTable(n, r, axis, taps[i], is_gradient, compute);
    Ints sizes = current.sizes;
    sizes[d] = is_gradient ? axis.in : axis.out;
    const View out = i + 1 == order.size() ? n.NewResult(0) : n.NewTemp(sizes, compute);
    EmitPass(n, current, out, static_cast<int>(d), table, taps[i]);
    current = out;
  }
  n.SetResult(0, current);
  return absl::OkStatus();
}

// out / in where it is a whole number, and the factor that counts.
std::optional<int64_t> WholeFactor(ir::IntContext& ints, const Axis& axis) {
  const IntExpr factor = ints.FloorDiv(axis.out, axis.in);
  if (!ints.Mod(axis.out, axis.in).is_const(0) || !factor.is_const()) return std::nullopt;
  if (axis.scale != 0 && axis.scale != static_cast<double>(factor.value())) return std::nullopt;
  return factor.value();
}

// A table of the outputs' source positions: floor(o * in / out) in f32, as ATen computes it.
View PositionTable(NodeContext& n, const Resampling& r, const Axis& axis) {
  const View table = n.NewTemp({axis.out}, DType::kI64);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.Outer(table.sizes);
  b.StartPhase();
  Scalar o = b.Cast(b.Index(at[0]), DType::kF32);
  if (r.is_exact) o = b.Op(kAdd, o, 0.5);
  const Scalar source = b.Op(kFloor, b.Op(kMul, o, Step(b, axis, DType::kF32)));
  const Scalar last = b.Index(b.ints().Add(axis.in, -1));
  b.Store(table, at, b.Op(kMin, b.Cast(source, DType::kI64), last));
  b.Finish(ir::Schedule::kPacking);
  return table;
}

void EmitNearest(NodeContext& n, const Resampling& r, const View& self) {
  const size_t first = self.sizes.size() - r.axes.size();
  std::vector<std::optional<View>> tables;
  for (const Axis& axis : r.axes) {
    const bool is_whole = WholeFactor(n.ints(), axis).has_value();
    tables.push_back(is_whole ? std::nullopt : std::optional(PositionTable(n, r, axis)));
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    std::vector<Coordinate> source(at.begin(), at.end());
    for (size_t d = first; d < at.size(); ++d) {
      const size_t i = d - first;
      if (tables[i]) {
        source[d] = b.Load(*tables[i], {at[d]});
      } else {
        source[d] = b.ints().FloorDiv(at[d], *WholeFactor(b.ints(), r.axes[i]));
      }
    }
    return b.LoadAt(self, source);
  });
}

// Whole factors only: the outputs that read an input are a block.
absl::Status EmitNearestGradient(NodeContext& n, const Resampling& r, const View& grad) {
  const size_t first = grad.sizes.size() - r.axes.size();
  Ints factors;
  for (const Axis& axis : r.axes) {
    const std::optional<int64_t> factor = WholeFactor(n.ints(), axis);
    if (!factor) return n.Decline("by a factor that is not whole");
    factors.push_back(n.ints().Const(*factor));
  }
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.Outer(out.sizes, n.LoopOrder(out));
  const Ints inner = b.StartPhase(factors);
  Ints source = at;
  for (size_t d = 0; d < factors.size(); ++d) {
    source[first + d] = b.ints().Add(b.ints().Mul(at[first + d], factors[d]), inner[d]);
  }
  const Scalar sum = b.Reduce(ReduceKind::kSum, b.Widen(b.Load(grad, source)));
  b.StartPhase();
  b.Store(out, at, sum);
  b.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// upsample_X(self, output_size, [align_corners,] scales...)
// upsample_X_backward(grad_output, output_size, input_size, [align_corners,] scales...)
// upsample_X.vec(input, output_size, [align_corners,] scale_factors)
enum class Form : uint8_t { kForward, kBackward, kVector };

absl::Status LowerResampling(NodeContext& n, Resampling r, size_t spatial, Form form) {
  const bool is_gradient = form == Form::kBackward;
  KILN_ASSIGN_OR_RETURN(const View from, n.Tensor(0, is_gradient ? "grad_output" : "self"));
  const Ints& sizes = n.Result(0).sizes;
  if (from.sizes.size() != spatial + 2 || sizes.size() != from.sizes.size()) {
    return n.BadGraph("ranks of argument and result", "two more than spatial dimensions");
  }
  KILN_RETURN_IF_ERROR(
      n.CheckSizes({sizes[0], sizes[1]}, {from.sizes[0], from.sizes[1]}, "the result"));
  const bool is_nearest = r.filter == Filter::kNearest;
  if (!IsFloat(from.dtype) && (!is_nearest || is_gradient)) return n.Decline("of integers");
  size_t next = is_gradient ? 3 : 2;
  bool align_corners = false;
  if (!is_nearest) {
    KILN_ASSIGN_OR_RETURN(align_corners, n.Bool(next++, "align_corners", false));
  }
  std::vector<double> scales(spatial, 0);
  if (form == Form::kVector) {
    KILN_ASSIGN_OR_RETURN(const std::vector<double> given, n.FloatList(next, "scale_factors"));
    if (given.size() == spatial) scales = given;
  } else {
    for (double& scale : scales) {
      KILN_ASSIGN_OR_RETURN(scale, n.Float(next++, "scales", 0));
    }
  }
  const Ints& in = is_gradient ? sizes : from.sizes;
  const Ints& out = is_gradient ? from.sizes : sizes;
  for (size_t d = 0; d < spatial; ++d) {
    r.axes.push_back({in[d + 2], out[d + 2], scales[d], align_corners, {}, {}});
    if (!is_nearest) KILN_RETURN_IF_ERROR(SetRatio(n, r.axes.back()));
  }
  if (!is_nearest) return EmitPasses(n, r, from, is_gradient);
  if (is_gradient) return EmitNearestGradient(n, r, from);
  EmitNearest(n, r, from);
  return absl::OkStatus();
}

}  // namespace

void RegisterResampling(Registry& registry) {
  const auto add = [&](const std::string& op, Resampling r, size_t spatial) {
    const auto form = [=](Form f) {
      return [=](NodeContext& n) { return LowerResampling(n, r, spatial, f); };
    };
    registry[op + ".default"] = form(Form::kForward);
    registry[op + ".vec"] = form(Form::kVector);
    registry[op + "_backward.default"] = form(Form::kBackward);
  };
  for (const size_t rank : {1, 2, 3}) {
    const std::string d = std::to_string(rank) + "d";
    add("upsample_nearest" + d, {Filter::kNearest, false, {}}, rank);
    add("_upsample_nearest_exact" + d, {Filter::kNearest, true, {}}, rank);
  }
  add("upsample_linear1d", {Filter::kLinear, false, {}}, 1);
  add("upsample_bilinear2d", {Filter::kLinear, false, {}}, 2);
  add("upsample_trilinear3d", {Filter::kLinear, false, {}}, 3);
  add("upsample_bicubic2d", {Filter::kCubic, false, {}}, 2);
}

}  // namespace kiln::lowering
