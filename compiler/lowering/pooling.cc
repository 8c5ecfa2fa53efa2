// Pooling and resampling over spatial dimensions.
#include <cmath>
#include <limits>
#include <vector>

#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "compiler/lowering/window.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

struct Pool {
  View input;
  size_t spatial = 2;  // the last so many dimensions
  Window window;
  Ints leading;  // sizes of the dimensions before them
};

// The part of the arguments that all poolings share: kernel_size, stride, padding.
absl::StatusOr<Pool> ReadPool(NodeContext& n, size_t spatial) {
  Pool pool;
  pool.spatial = spatial;
  KILN_ASSIGN_OR_RETURN(pool.input, n.Tensor(0, "self"));
  const size_t rank = pool.input.sizes.size();
  if (rank < spatial || n.Result(0).sizes.size() != rank) {
    return n.BadGraph("ranks of argument and result", "equal, and one for each window dimension");
  }
  KILN_ASSIGN_OR_RETURN(pool.window.kernel, n.SpatialList(1, "kernel_size", spatial, 1));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> stride, n.ConstIntList(2, "stride"));
  pool.window.stride = pool.window.kernel;
  if (!stride.empty()) {
    KILN_ASSIGN_OR_RETURN(pool.window.stride, n.SpatialList(2, "stride", spatial, 1));
  }
  KILN_ASSIGN_OR_RETURN(pool.window.padding, n.SpatialList(3, "padding", spatial, 0));
  pool.window.dilation.assign(spatial, 1);
  pool.leading.assign(pool.input.sizes.begin(), pool.input.sizes.end() - spatial);
  const Ints& out = n.Result(0).sizes;
  KILN_RETURN_IF_ERROR(
      n.CheckSizes(Ints(out.begin(), out.end() - spatial), pool.leading, "the result"));
  for (const int64_t size : pool.window.kernel) {
    if (size < 1) return n.BadGraph("a kernel of size 0", "1 or more");
  }
  return pool;
}

Ints KernelSizes(ir::IntContext& ints, const Window& window) {
  Ints sizes;
  for (const int64_t size : window.kernel) sizes.push_back(ints.Const(size));
  return sizes;
}

// Coordinates in the input of window element `inner` at the output's `outer`.
Ints InputCoordinates(KernelBuilder& b, const Pool& pool, const Ints& outer, const Ints& inner) {
  Ints at = outer;
  const size_t first = outer.size() - pool.spatial;
  for (size_t d = 0; d < pool.spatial; ++d) {
    at[first + d] = WindowIndex(b.ints(), pool.window, d, outer[first + d], inner[d]);
  }
  return at;
}

// One kernel: result i = after(reduce over the window of the input, `outside` beyond its edges).
void EmitPool(NodeContext& n, size_t i, const Pool& pool, ReduceKind kind, double outside,
              const std::function<Scalar(KernelBuilder&, const Ints&, Scalar)>& after) {
  const View out = n.NewResult(i);
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(out.sizes, n.LoopOrder(out));
  const Ints inner = b.StartPhase(KernelSizes(n.ints(), pool.window));
  const Ints at = InputCoordinates(b, pool, outer, inner);
  const Scalar mask = InsideMask(b, pool.input.sizes, at);
  const Scalar value = b.Reduce(kind, b.Widen(b.LoadMasked(pool.input, at, mask, outside)));
  b.StartPhase();
  b.Store(out, outer, after(b, outer, value));
  b.Finish();
  n.SetResult(i, out);
}

// The flat position in the input's spatial dimensions of window element number `element`.
Scalar FlatIndex(KernelBuilder& b, const Pool& pool, const Ints& outer, Scalar element) {
  const size_t first = outer.size() - pool.spatial;
  Scalar rest = element;
  std::vector<Scalar> position(pool.spatial);
  for (size_t d = pool.spatial; d-- > 0;) {
    const Scalar size = b.ConstInt(DType::kI64, pool.window.kernel[d]);
    const Scalar offset = d == 0 ? rest : b.Op(kMod, rest, size);
    rest = b.Op(kFloorDiv, rest, size);
    const IntExpr start =
        WindowIndex(b.ints(), pool.window, d, outer[first + d], b.ints().Const(0));
    const Scalar step = b.ConstInt(DType::kI64, pool.window.dilation[d]);
    const Scalar at = b.Op(kAdd, b.Index(start), b.Op(kMul, offset, step));
    // Where a whole window is -inf, its first element wins even if it lies in the padding; ATen
    // names the first one inside.
    position[d] = b.Op(kMax, at, b.ConstInt(DType::kI64, 0));
  }
  Scalar flat = position[0];
  for (size_t d = 1; d < pool.spatial; ++d) {
    flat = b.Op(kMul, flat, b.Index(pool.input.sizes[first + d]));
    flat = b.Op(kAdd, flat, position[d]);
  }
  return flat;
}

// max_poolNd_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode); the recorded
// sizes say what ceil_mode does.
absl::Status LowerMaxPool(NodeContext& n, size_t spatial, bool has_indices) {
  KILN_ASSIGN_OR_RETURN(Pool pool, ReadPool(n, spatial));
  KILN_ASSIGN_OR_RETURN(pool.window.dilation, n.SpatialList(4, "dilation", spatial, 1));
  const bool is_float = IsFloat(pool.input.dtype);
  if (!is_float) return n.Decline("of integers");
  const double lowest = -std::numeric_limits<double>::infinity();
  if (n.ResultUsed(0)) {
    EmitPool(n, 0, pool, ReduceKind::kMax, lowest,
             [](KernelBuilder&, const Ints&, Scalar value) { return value; });
  }
  if (!has_indices) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(1).sizes, n.Result(0).sizes, "the indices"));
  if (!n.ResultUsed(1)) return absl::OkStatus();
  EmitPool(n, 1, pool, ReduceKind::kArgMax, lowest,
           [&](KernelBuilder& b, const Ints& outer, Scalar element) {
             return FlatIndex(b, pool, outer, element);
           });
  return absl::OkStatus();
}

// How many elements the mean at `outer` is of: the window cut to the padded input, or to the input.
IntExpr WindowCount(ir::IntContext& ints, const Pool& pool, const Ints& outer, bool with_padding) {
  const size_t first = outer.size() - pool.spatial;
  IntExpr count = ints.Const(1);
  for (size_t d = 0; d < pool.spatial; ++d) {
    const IntExpr size = pool.input.sizes[first + d];
    const IntExpr start = WindowIndex(ints, pool.window, d, outer[first + d], ints.Const(0));
    const IntExpr end =
        ints.Min(ints.Add(start, pool.window.kernel[d]), ints.Add(size, pool.window.padding[d]));
    count = ints.Mul(count, with_padding
                                ? ints.Sub(end, start)
                                : ints.Sub(ints.Min(end, size), ints.Max(start, ints.Const(0))));
  }
  return count;
}

// avg_poolNd(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
absl::Status LowerAvgPool(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Pool pool, ReadPool(n, spatial));
  KILN_ASSIGN_OR_RETURN(const bool with_padding, n.Bool(5, "count_include_pad", true));
  KILN_ASSIGN_OR_RETURN(const int64_t divisor, n.ConstInt(6, "divisor_override", 0));
  if (!IsFloat(pool.input.dtype)) return n.Decline("of integers");
  EmitPool(n, 0, pool, ReduceKind::kSum, 0, [&](KernelBuilder& b, const Ints& outer, Scalar sum) {
    if (divisor != 0) return b.Op(kDiv, sum, static_cast<double>(divisor));
    const IntExpr count = WindowCount(b.ints(), pool, outer, with_padding);
    return b.Op(kDiv, sum, b.Cast(b.Index(count), sum.dtype));
  });
  return absl::OkStatus();
}

// Output o is the mean over [floor(o*in/out), ceil((o+1)*in/out)).
absl::Status LowerAdaptiveAvgPool(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  const Ints& sizes = n.Result(0).sizes;
  if (self.sizes.size() < spatial || sizes.size() != self.sizes.size()) {
    return n.BadGraph("ranks of argument and result", "equal");
  }
  if (!IsFloat(self.dtype)) return n.Decline("of integers");
  const size_t first = sizes.size() - spatial;
  KILN_RETURN_IF_ERROR(n.CheckSizes(Ints(sizes.begin(), sizes.begin() + first),
                                    Ints(self.sizes.begin(), self.sizes.begin() + first),
                                    "the result"));
  ir::IntContext& ints = n.ints();
  Ints extents;
  for (size_t d = first; d < sizes.size(); ++d) {
    if (sizes[d].range().min < 1) return n.Decline("to a size that may be 0");
    // One more than the quotient covers a window that starts and ends between elements.
    const bool is_even = ints.Mod(self.sizes[d], sizes[d]).is_const(0);
    extents.push_back(is_even ? ints.FloorDiv(self.sizes[d], sizes[d])
                              : ints.Add(ints.CeilDiv(self.sizes[d], sizes[d]), 1));
  }
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(out.sizes, n.LoopOrder(out));
  const Ints inner = b.StartPhase(extents);
  Ints at = outer;
  Scalar mask;
  IntExpr count = ints.Const(1);
  for (size_t d = 0; d < spatial; ++d) {
    const IntExpr in = self.sizes[first + d];
    const IntExpr o = outer[first + d];
    const IntExpr start = ints.FloorDiv(ints.Mul(o, in), sizes[first + d]);
    const IntExpr end = ints.CeilDiv(ints.Mul(ints.Add(o, 1), in), sizes[first + d]);
    at[first + d] = ints.Add(start, inner[d]);
    b.AddBounds(at[first + d], start, end, mask);
    b.AddBounds(at[first + d], ints.Const(0), in, mask);
    count = ints.Mul(count, ints.Sub(end, start));
  }
  const Scalar sum = b.Reduce(ReduceKind::kSum, b.Widen(b.LoadMasked(self, at, mask, 0)));
  b.StartPhase();
  b.Store(out, outer, b.Op(kDiv, sum, b.Cast(b.Index(count), sum.dtype)));
  b.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// The source position of output `o` for nearest resampling: floor(o * in / out) in f32, as ATen
// computes it, or exact integer arithmetic where the factor is whole.
Coordinate NearestSource(KernelBuilder& b, IntExpr o, IntExpr in, IntExpr out, double scale) {
  if (scale == 0 && in == out) return o;
  if (in.is_const() && out.is_const() && out.value() % in.value() == 0) {
    const int64_t factor = out.value() / in.value();
    if (scale == 0 || scale == static_cast<double>(factor)) return b.ints().FloorDiv(o, factor);
  }
  const auto f32 = [&](IntExpr e) { return b.Cast(b.Index(e), DType::kF32); };
  const Scalar ratio = scale > 0 ? b.Const(DType::kF32, 1 / scale) : b.Op(kDiv, f32(in), f32(out));
  const Scalar source = b.Cast(b.Op(kFloor, b.Op(kMul, f32(o), ratio)), DType::kI64);
  return b.Op(kMin, source, b.Index(b.ints().Add(in, -1)));
}

// upsample_nearestNd.vec(input, output_size, scale_factors), .default(self, output_size, scales..)
absl::Status LowerUpsampleNearest(NodeContext& n, size_t spatial, bool has_scale_list) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "input"));
  const Ints& sizes = n.Result(0).sizes;
  if (self.sizes.size() != spatial + 2 || sizes.size() != self.sizes.size()) {
    return n.BadGraph("ranks of argument and result", "two more than spatial dimensions");
  }
  KILN_RETURN_IF_ERROR(
      n.CheckSizes({sizes[0], sizes[1]}, {self.sizes[0], self.sizes[1]}, "the result"));
  std::vector<double> scales(spatial, 0);
  if (has_scale_list) {
    KILN_ASSIGN_OR_RETURN(const std::vector<double> given, n.FloatList(2, "scale_factors"));
    if (given.size() == spatial) scales = given;
  } else {
    for (size_t d = 0; d < spatial; ++d) {
      KILN_ASSIGN_OR_RETURN(scales[d], n.Float(2 + d, "scales", 0));
    }
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    std::vector<Coordinate> source{at[0], at[1]};
    for (size_t d = 2; d < at.size(); ++d) {
      source.push_back(NearestSource(b, at[d], self.sizes[d], sizes[d], scales[d - 2]));
    }
    return b.LoadAt(self, source);
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterPooling(Registry& registry) {
  for (const size_t rank : {1, 2, 3}) {
    const std::string d = std::to_string(rank) + "d";
    registry["max_pool" + d + "_with_indices.default"] = [rank](NodeContext& n) {
      return LowerMaxPool(n, rank, true);
    };
    registry["max_pool" + d + ".default"] = [rank](NodeContext& n) {
      return LowerMaxPool(n, rank, false);
    };
    registry["avg_pool" + d + ".default"] = [rank](NodeContext& n) {
      return LowerAvgPool(n, rank);
    };
    const auto adaptive = [rank](NodeContext& n) { return LowerAdaptiveAvgPool(n, rank); };
    registry["_adaptive_avg_pool" + d + ".default"] = adaptive;
    registry["adaptive_avg_pool" + d + ".default"] = adaptive;
    registry["upsample_nearest" + d + ".vec"] = [rank](NodeContext& n) {
      return LowerUpsampleNearest(n, rank, true);
    };
    registry["upsample_nearest" + d + ".default"] = [rank](NodeContext& n) {
      return LowerUpsampleNearest(n, rank, false);
    };
  }
}

}  // namespace kiln::lowering
