// Pooling over spatial dimensions.
#include "compiler/lowering/pooling.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "compiler/lowering/window.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

absl::StatusOr<Window> ReadPoolWindow(NodeContext& n, size_t first, size_t spatial) {
  Window window;
  KILN_ASSIGN_OR_RETURN(window.kernel, n.SpatialList(first, "kernel_size", spatial, 1));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> stride, n.ConstIntList(first + 1, "stride"));
  window.stride = window.kernel;
  if (!stride.empty()) {
    KILN_ASSIGN_OR_RETURN(window.stride, n.SpatialList(first + 1, "stride", spatial, 1));
  }
  KILN_ASSIGN_OR_RETURN(window.padding, n.SpatialList(first + 2, "padding", spatial, 0));
  window.dilation.assign(spatial, 1);
  for (size_t d = 0; d < spatial; ++d) {
    if (window.kernel[d] < 1 || window.stride[d] < 1) {
      return n.BadGraph("a kernel or stride of size 0", "1 or more");
    }
  }
  return window;
}

IntExpr WindowCount(ir::IntContext& ints, const Window& window, const Ints& sizes, const Ints& out,
                    bool with_padding) {
  IntExpr count = ints.Const(1);
  for (size_t d = 0; d < sizes.size(); ++d) {
    const IntExpr start = WindowIndex(ints, window, d, out[d], ints.Const(0));
    const IntExpr end =
        ints.Min(ints.Add(start, window.kernel[d]), ints.Add(sizes[d], window.padding[d]));
    count = ints.Mul(
        count, with_padding ? ints.Sub(end, start)
                            : ints.Sub(ints.Min(end, sizes[d]), ints.Max(start, ints.Const(0))));
  }
  return count;
}

AdaptiveRange AdaptiveRangeOf(ir::IntContext& ints, IntExpr o, IntExpr in, IntExpr out) {
  return {ints.FloorDiv(ints.Mul(o, in), out), ints.CeilDiv(ints.Mul(ints.Add(o, 1), in), out)};
}

IntExpr AdaptiveExtent(ir::IntContext& ints, IntExpr in, IntExpr out) {
  if (ints.Mod(in, out).is_const(0)) return ints.FloorDiv(in, out);
  if (ints.Mod(out, in).is_const(0)) return ints.Const(1);
  // One more than the quotient covers a window that starts and ends between elements.
  return ints.Add(ints.CeilDiv(in, out), 1);
}

namespace {

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
  KILN_ASSIGN_OR_RETURN(pool.window, ReadPoolWindow(n, 1, spatial));
  pool.leading.assign(pool.input.sizes.begin(), pool.input.sizes.end() - spatial);
  const Ints& out = n.Result(0).sizes;
  KILN_RETURN_IF_ERROR(
      n.CheckSizes(Ints(out.begin(), out.end() - spatial), pool.leading, "the result"));
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

// The window element that ATen's kernels name, by its row-major number: the last NaN, or else the
// first greatest.
struct Greatest {
  Scalar first;
  Scalar last_nan;  // -1: there is none
};

// In the phase that reduces over `inner` of `sizes`.
Greatest ReduceToGreatest(KernelBuilder& b, Scalar element, const Ints& inner, const Ints& sizes) {
  IntExpr number = b.ints().Const(0);
  for (size_t d = 0; d < inner.size(); ++d) {
    number = b.ints().Add(b.ints().Mul(number, sizes[d]), inner[d]);
  }
  const DType narrow = number.range().max <= INT32_MAX ? DType::kI32 : DType::kI64;
  const Scalar nan_number = b.Select(b.Op(kNe, element, element), b.Cast(b.Index(number), narrow),
                                     b.ConstInt(narrow, -1));
  return {b.Reduce(ReduceKind::kArgMax, element), b.Reduce(ReduceKind::kMax, nan_number)};
}

// In the phase after that.
Scalar NumberOf(KernelBuilder& b, const Greatest& greatest) {
  const Scalar has_nan = b.Op(kGe, greatest.last_nan, b.ConstInt(greatest.last_nan.dtype, 0));
  return b.Select(has_nan, b.Cast(greatest.last_nan, DType::kI64), greatest.first);
}

// The phase that reduces over a window of the pool's, in a kernel over `out`.
struct PoolLoops {
  Ints outer, inner;
  Scalar element;  // `outside` beyond the input's edges
};

PoolLoops StartPool(NodeContext& n, KernelBuilder& b, const Pool& pool, const View& out,
                    double outside) {
  PoolLoops loops;
  loops.outer = b.Outer(out.sizes, n.LoopOrder(out));
  loops.inner = b.StartPhase(KernelSizes(n.ints(), pool.window));
  const Ints at = InputCoordinates(b, pool, loops.outer, loops.inner);
  const Scalar mask = InsideMask(b, pool.input.sizes, at);
  loops.element = b.Widen(b.LoadMasked(pool.input, at, mask, outside));
  return loops;
}

// n / size of an n in [0, volume).
Scalar Quotient(KernelBuilder& b, Scalar n, int64_t volume, int64_t size) {
  // 2^16 / size, rounded up, is too great by e / size for an e < size. That makes the quotient too
  // great by n * e / size / 2^16, which is less than the 1 / size up to the next integer.
  constexpr int kBits = 16;
  constexpr int64_t kOne = int64_t{1} << kBits;
  if (volume * size > kOne) return b.Op(kFloorDiv, n, b.ConstInt(n.dtype, size));
  const Scalar inverse = b.ConstInt(n.dtype, (kOne + size - 1) / size);
  return b.Op(kShr, b.Op(kMul, n, inverse), b.ConstInt(n.dtype, kBits));
}

// The flat position in the input's spatial dimensions of window element number `element`.
Scalar FlatIndex(KernelBuilder& b, const Pool& pool, const Ints& outer, Scalar element) {
  const size_t first = outer.size() - pool.spatial;
  // Machines multiply vectors of 32 bits, and divide number by number.
  const DType narrow = pool.window.Volume() <= INT32_MAX ? DType::kI32 : DType::kI64;
  Scalar rest = b.Cast(element, narrow);
  std::vector<Scalar> position(pool.spatial);
  int64_t volume = pool.window.Volume();
  for (size_t d = pool.spatial; d-- > 0;) {
    const int64_t size = pool.window.kernel[d];
    Scalar offset = rest;
    if (d > 0 && size > 1) {
      rest = Quotient(b, rest, volume, size);
      offset = b.Op(kSub, offset, b.Op(kMul, rest, b.ConstInt(narrow, size)));
      volume /= size;
    } else if (d > 0) {
      offset = b.ConstInt(narrow, 0);
    }
    offset = b.Cast(offset, DType::kI64);
    const IntExpr start =
        WindowIndex(b.ints(), pool.window, d, outer[first + d], b.ints().Const(0));
    const Scalar step = b.ConstInt(DType::kI64, pool.window.dilation[d]);
    const Scalar at = b.Op(kAdd, b.Index(start), b.Op(kMul, offset, step));
    // Where a whole window is -inf, its first element wins even if it lies in the padding; ATen
    // names the first one inside.
    const IntExpr inside = b.ints().Mod(start, pool.window.dilation[d]);
    position[d] = b.Op(kMax, at, b.Index(inside));
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
  if (has_indices) {
    KILN_RETURN_IF_ERROR(n.CheckResults(2));
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(1).sizes, n.Result(0).sizes, "the indices"));
  }
  std::optional<View> values, indices;
  if (n.ResultUsed(0)) n.SetResult(0, *(values = n.NewResult(0)));
  if (has_indices && n.ResultUsed(1)) n.SetResult(1, *(indices = n.NewResult(1)));
  // A kernel for each, but where vectors are of channels, which read what they read of the window
  // as quickly for both.
  const auto emit = [&](bool with_values, bool with_indices) {
    KernelBuilder b = n.NewKernel();
    const PoolLoops loops = StartPool(n, b, pool, with_values ? *values : *indices, lowest);
    Scalar value;
    Greatest greatest;
    if (with_values) value = b.Reduce(ReduceKind::kMax, loops.element);
    if (with_indices) {
      greatest =
          ReduceToGreatest(b, loops.element, loops.inner, KernelSizes(b.ints(), pool.window));
    }
    b.StartPhase();
    if (with_values) b.Store(*values, loops.outer, value);
    if (with_indices) {
      b.Store(*indices, loops.outer, FlatIndex(b, pool, loops.outer, NumberOf(b, greatest)));
    }
    b.Finish();
  };
  const auto channels_inside = [&](const View& out) {
    const std::vector<int> order = n.LoopOrder(out);
    return n.lanes_beside_windows() && static_cast<size_t>(order.back()) < order.size() - spatial;
  };
  if (values && indices && channels_inside(*values) && channels_inside(*indices)) {
    emit(true, true);
    return absl::OkStatus();
  }
  if (values) emit(true, false);
  if (indices) emit(false, true);
  return absl::OkStatus();
}

Ints SpatialPart(const Ints& all, size_t spatial) {
  return Ints(all.end() - spatial, all.end());
}

// avg_poolNd(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
absl::Status LowerAvgPool(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Pool pool, ReadPool(n, spatial));
  KILN_ASSIGN_OR_RETURN(const bool with_padding, n.Bool(5, "count_include_pad", true));
  KILN_ASSIGN_OR_RETURN(const int64_t divisor, n.ConstInt(6, "divisor_override", 0));
  if (!IsFloat(pool.input.dtype)) return n.Decline("of integers");
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const PoolLoops loops = StartPool(n, b, pool, out, 0);
  const Scalar sum = b.Reduce(ReduceKind::kSum, loops.element);
  b.StartPhase();
  Scalar mean;
  if (divisor != 0) {
    mean = b.Op(kDiv, sum, static_cast<double>(divisor));
  } else {
    const IntExpr count =
        WindowCount(b.ints(), pool.window, SpatialPart(pool.input.sizes, pool.spatial),
                    SpatialPart(loops.outer, pool.spatial), with_padding);
    mean = b.Op(kDiv, sum, b.Cast(b.Index(count), sum.dtype));
  }
  b.Store(out, loops.outer, mean);
  b.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// The window that adaptive pooling takes the output at `outer` from.
struct AdaptiveWindow {
  Ints extents;  // of the loops over it
  Ints starts;   // first coordinate by spatial dimension
  IntExpr count;
  Ints at;  // the input's coordinates of the loops' element
  Scalar mask;
  Ints inner;  // the loops
};

absl::Status CheckAdaptive(NodeContext& n, const View& self, size_t spatial) {
  const Ints& sizes = n.Result(0).sizes;
  if (self.sizes.size() < spatial || sizes.size() != self.sizes.size()) {
    return n.BadGraph("ranks of argument and result", "equal");
  }
  if (!IsFloat(self.dtype)) return n.Decline("of integers");
  const size_t first = sizes.size() - spatial;
  KILN_RETURN_IF_ERROR(n.CheckSizes(Ints(sizes.begin(), sizes.begin() + first),
                                    Ints(self.sizes.begin(), self.sizes.begin() + first),
                                    "the result"));
  for (size_t d = first; d < sizes.size(); ++d) {
    if (sizes[d].range().min < 1) return n.Decline("to a size that may be 0");
  }
  return absl::OkStatus();
}

// Starts the phase that loops over the window.
AdaptiveWindow StartAdaptive(KernelBuilder& b, const View& self, const Ints& sizes,
                             const Ints& outer, size_t spatial) {
  ir::IntContext& ints = b.ints();
  const size_t first = sizes.size() - spatial;
  AdaptiveWindow window{{}, {}, ints.Const(1), outer, {}, {}};
  for (size_t d = first; d < sizes.size(); ++d) {
    window.extents.push_back(AdaptiveExtent(ints, self.sizes[d], sizes[d]));
  }
  window.inner = b.StartPhase(window.extents);
  for (size_t d = 0; d < spatial; ++d) {
    const IntExpr in = self.sizes[first + d];
    const auto [start, end] = AdaptiveRangeOf(ints, outer[first + d], in, sizes[first + d]);
    IntExpr& at = window.at[first + d];
    at = ints.Add(start, window.inner[d]);
    b.AddBounds(at, start, end, window.mask);
    b.AddBounds(at, ints.Const(0), in, window.mask);
    window.starts.push_back(start);
    window.count = ints.Mul(window.count, ints.Sub(end, start));
  }
  return window;
}

absl::Status LowerAdaptiveAvgPool(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(CheckAdaptive(n, self, spatial));
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(out.sizes, n.LoopOrder(out));
  const AdaptiveWindow w = StartAdaptive(b, self, out.sizes, outer, spatial);
  const Scalar sum = b.Reduce(ReduceKind::kSum, b.Widen(b.LoadMasked(self, w.at, w.mask, 0)));
  b.StartPhase();
  b.Store(out, outer, b.Op(kDiv, sum, b.Cast(b.Index(w.count), sum.dtype)));
  b.Finish();
  n.SetResult(0, out);
  return absl::OkStatus();
}

// adaptive_max_poolNd(self, output_size) -> (values, flat positions of each in the spatial
// dimensions)
absl::Status LowerAdaptiveMaxPool(NodeContext& n, size_t spatial) {
  KILN_RETURN_IF_ERROR(n.CheckResults(2));
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(CheckAdaptive(n, self, spatial));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(1).sizes, n.Result(0).sizes, "the indices"));
  const double lowest = -std::numeric_limits<double>::infinity();
  for (const size_t i : {0, 1}) {
    if (!n.ResultUsed(i)) continue;
    const View out = n.NewResult(i);
    KernelBuilder b = n.NewKernel();
    const Ints outer = b.Outer(out.sizes, n.LoopOrder(out));
    const AdaptiveWindow w = StartAdaptive(b, self, out.sizes, outer, spatial);
    const Scalar element = b.Widen(b.LoadMasked(self, w.at, w.mask, lowest));
    Scalar value;
    if (i == 0) {
      value = b.Reduce(ReduceKind::kMax, element);
      b.StartPhase();
    } else {
      const Greatest greatest = ReduceToGreatest(b, element, w.inner, w.extents);
      b.StartPhase();
      value = NumberOf(b, greatest);
      std::vector<Scalar> position(spatial);
      for (size_t d = spatial; d-- > 0;) {
        const Scalar extent = b.Index(w.extents[d]);
        const Scalar offset = d == 0 ? value : b.Op(kMod, value, extent);
        value = b.Op(kFloorDiv, value, extent);
        position[d] = b.Op(kAdd, b.Index(w.starts[d]), offset);
      }
      value = position[0];
      for (size_t d = 1; d < spatial; ++d) {
        value = b.Op(kMul, value, b.Index(self.sizes[self.sizes.size() - spatial + d]));
        value = b.Op(kAdd, value, position[d]);
      }
    }
    b.Store(out, outer, value);
    b.Finish();
    n.SetResult(i, out);
  }
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
    registry["adaptive_max_pool" + d + ".default"] = [rank](NodeContext& n) {
      return LowerAdaptiveMaxPool(n, rank);
    };
    const auto adaptive = [rank](NodeContext& n) { return LowerAdaptiveAvgPool(n, rank); };
    registry["_adaptive_avg_pool" + d + ".default"] = adaptive;
    registry["adaptive_avg_pool" + d + ".default"] = adaptive;
  }
}

}  // namespace kiln::lowering
