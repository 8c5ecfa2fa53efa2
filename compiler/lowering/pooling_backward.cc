// Gradients of poolings, of padding by repeated edges, and of taking windows apart. Each element of
// the input's gradient sums over the outputs that could have read it: a gather, so nothing is
// written twice. That of max pooling may be a scatter.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "compiler/lowering/pooling.h"
#include "compiler/lowering/registry.h"
#include "compiler/lowering/scatters.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;
using ir::ReduceKind;

struct Gradient {
  View grad;  // of the output
  View self;  // the input
  size_t spatial = 2;
  size_t first = 0;  // spatial dimension
};

absl::StatusOr<Gradient> ReadGradient(NodeContext& n, size_t spatial) {
  Gradient g;
  g.spatial = spatial;
  KILN_ASSIGN_OR_RETURN(g.grad, n.Tensor(0, "grad_output"));
  KILN_ASSIGN_OR_RETURN(g.self, n.Tensor(1, "self"));
  const size_t rank = g.self.sizes.size();
  if (rank < spatial || g.grad.sizes.size() != rank) {
    return n.BadGraph("ranks of its arguments", "equal, and one for each window dimension");
  }
  if (!IsFloat(g.grad.dtype)) return n.Decline("of integers");
  g.first = rank - spatial;
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, g.self.sizes, "the result"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(Ints(g.grad.sizes.begin(), g.grad.sizes.begin() + g.first),
                                    Ints(g.self.sizes.begin(), g.self.sizes.begin() + g.first),
                                    "the gradient"));
  return g;
}

// One kernel: result 0 at `outer` = the sum of `element` over `extents`.
void EmitGather(NodeContext& n, const Ints& extents,
                const std::function<Scalar(KernelBuilder&, const Ints&, const Ints&)>& element) {
  const View out = n.NewResult(0);
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer(out.sizes, n.LoopOrder(out));
  const Ints inner = b.StartPhase(extents);
  const Scalar sum = b.Reduce(ReduceKind::kSum, b.Widen(element(b, outer, inner)));
  b.StartPhase();
  b.Store(out, outer, sum);
  b.Finish();
  n.SetResult(0, out);
}

// How many windows can hold one element.
Ints WindowsOfElement(ir::IntContext& ints, const Window& w) {
  Ints counts;
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    const int64_t reach = (w.kernel[d] - 1) * w.dilation[d] + 1;
    counts.push_back(ints.Const((reach + w.stride[d] - 1) / w.stride[d]));
  }
  return counts;
}

// Coordinates of the j-th last window that starts at or before the element at `at`.
Ints WindowsAt(ir::IntContext& ints, const Gradient& g, const Window& w, const Ints& at,
               const Ints& j) {
  Ints windows = at;
  for (size_t d = 0; d < g.spatial; ++d) {
    const IntExpr shifted = ints.Add(at[g.first + d], w.padding[d]);
    windows[g.first + d] = ints.Sub(ints.FloorDiv(shifted, w.stride[d]), j[d]);
  }
  return windows;
}

// Leaves out of `mask` the windows that have gone past the element. REQUIRES: no dilation.
void AddReach(KernelBuilder& b, const Gradient& g, const Window& w, const Ints& at, const Ints& j,
              Scalar& mask) {
  ir::IntContext& ints = b.ints();
  for (size_t d = 0; d < g.spatial; ++d) {
    const IntExpr shifted = ints.Add(at[g.first + d], w.padding[d]);
    const IntExpr offset = ints.Add(ints.Mod(shifted, w.stride[d]), ints.Mul(j[d], w.stride[d]));
    b.AddBounds(offset, ints.Const(0), ints.Const(w.kernel[d]), mask);
  }
}

// The element's flat position in the spatial dimensions.
IntExpr FlatPosition(ir::IntContext& ints, const Gradient& g, const Ints& at) {
  IntExpr flat = ints.Const(0);
  for (size_t d = g.first; d < at.size(); ++d) {
    flat = ints.Add(ints.Mul(flat, g.self.sizes[d]), at[d]);
  }
  return flat;
}

// The gradient at `window` where the index recorded there names the element at `at`, else 0.
Scalar WhereChosen(KernelBuilder& b, const Gradient& g, const View& indices, const Ints& window,
                   Scalar mask, const Ints& at) {
  const Scalar index = b.LoadMasked(indices, window, mask, -1);
  const Scalar own = b.Index(FlatPosition(b.ints(), g, at));
  const Scalar value = b.Widen(b.LoadMasked(g.grad, window, mask, 0));
  return b.Select(b.Op(kEq, index, own), value, b.Const(value.dtype, 0.0));
}

// The gradient as a scatter: each window adds to the element that its index names, in the order of
// ATen's kernel.
void ScatterToChosen(NodeContext& n, const Gradient& g, const View& indices) {
  const auto images = g.grad.sizes.begin() + static_cast<std::ptrdiff_t>(g.first);
  const Ints windows(images, g.grad.sizes.end());
  Ints sizes(g.grad.sizes.begin(), images);
  sizes.push_back(n.ints().Product(Ints(g.self.sizes.begin() + g.first, g.self.sizes.end())));
  Scatter s{n.NewTemp(sizes, ComputeType(g.grad.dtype)), std::vector<bool>(sizes.size(), true),
            windows};
  s.is_free.back() = false;
  EmitScatter(n, s, [&](KernelBuilder& b, const Ints&) { return b.Const(s.out.dtype, 0.0); },
              {[&](KernelBuilder& b, const Ints& free, const Ints& inner) {
                Ints at(free.begin(), free.end() - 1);
                std::vector<Coordinate> to(at.begin(), at.end());
                at.insert(at.end(), inner.begin(), inner.end());
                to.emplace_back(b.Load(indices, at));
                b.StoreAt(s.out, to, b.Widen(b.Load(g.grad, at)), ReduceKind::kSum);
              }});
  SetFrom(n, Reshape(n.ints(), s.out, g.self.sizes));
}

// max_poolNd_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation,
// ceil_mode, indices)
absl::Status LowerMaxPoolBackward(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Gradient g, ReadGradient(n, spatial));
  KILN_ASSIGN_OR_RETURN(Window window, ReadPoolWindow(n, 2, spatial));
  KILN_ASSIGN_OR_RETURN(window.dilation, n.SpatialList(5, "dilation", spatial, 1));
  KILN_ASSIGN_OR_RETURN(const View indices, n.Tensor(7, "indices"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(indices.sizes, g.grad.sizes, "the indices"));
  if (indices.dtype != DType::kI64) return n.Decline("with indices that are no i64");
  const graph::TensorType& result = n.Result(0);
  const bool is_contiguous = result.strides == n.module().ContiguousStrides(result.sizes);
  const auto may_be_empty = [](IntExpr size) { return size.range().min < 1; };
  if (n.lanes_beside_windows() && is_contiguous && absl::c_none_of(result.sizes, may_be_empty)) {
    ScatterToChosen(n, g, indices);
    return absl::OkStatus();
  }
  EmitGather(n, WindowsOfElement(n.ints(), window),
             [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
               const Ints windows = WindowsAt(b.ints(), g, window, at, inner);
               Scalar mask = InsideMask(b, g.grad.sizes, windows);
               // An index says as much, but what is not read costs nothing.
               const auto is_one = [](int64_t dilation) { return dilation == 1; };
               if (absl::c_all_of(window.dilation, is_one)) {
                 AddReach(b, g, window, at, inner, mask);
               }
               return WhereChosen(b, g, indices, windows, mask, at);
             });
  return absl::OkStatus();
}

// The gradient divided by what each mean was divided by.
View Scaled(NodeContext& n, const Gradient& g, const std::function<IntExpr(const Ints&)>& count) {
  const View scaled = n.NewTemp(g.grad.sizes, ComputeType(g.grad.dtype));
  n.Pointwise(scaled, [&](KernelBuilder& b, const Ints& at) {
    const Scalar value = b.Widen(b.Load(g.grad, at));
    return b.Op(kDiv, value, b.Cast(b.Index(count(at)), value.dtype));
  });
  return scaled;
}

// avg_poolNd_backward(grad_output, self, kernel_size, stride, padding, ceil_mode,
// count_include_pad, divisor_override)
absl::Status LowerAvgPoolBackward(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Gradient g, ReadGradient(n, spatial));
  KILN_ASSIGN_OR_RETURN(const Window window, ReadPoolWindow(n, 2, spatial));
  KILN_ASSIGN_OR_RETURN(const bool with_padding, n.Bool(6, "count_include_pad", true));
  KILN_ASSIGN_OR_RETURN(const int64_t divisor, n.ConstInt(7, "divisor_override", 0));
  const Ints sizes(g.self.sizes.begin() + g.first, g.self.sizes.end());
  const View scaled = Scaled(n, g, [&](const Ints& at) {
    if (divisor != 0) return n.ints().Const(divisor);
    return WindowCount(n.ints(), window, sizes, Ints(at.begin() + g.first, at.end()), with_padding);
  });
  EmitGather(n, WindowsOfElement(n.ints(), window),
             [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
               const Ints windows = WindowsAt(b.ints(), g, window, at, inner);
               Scalar mask = InsideMask(b, g.grad.sizes, windows);
               AddReach(b, g, window, at, inner, mask);
               return b.LoadMasked(scaled, windows, mask, 0);
             });
  return absl::OkStatus();
}

// Loops over the outputs of an adaptive pooling that read one element.
Ints AdaptiveExtents(NodeContext& n, const Gradient& g) {
  Ints extents;
  for (size_t d = g.first; d < g.self.sizes.size(); ++d) {
    extents.push_back(AdaptiveExtent(n.ints(), g.grad.sizes[d], g.self.sizes[d]));
  }
  return extents;
}

Ints AdaptiveOutputs(KernelBuilder& b, const Gradient& g, const Ints& at, const Ints& inner,
                     Scalar& mask) {
  ir::IntContext& ints = b.ints();
  Ints outputs = at;
  for (size_t d = 0; d < g.spatial; ++d) {
    const size_t i = g.first + d;
    const auto [start, end] = AdaptiveRangeOf(ints, at[i], g.grad.sizes[i], g.self.sizes[i]);
    outputs[i] = ints.Add(start, inner[d]);
    b.AddBounds(outputs[i], start, end, mask);
    b.AddBounds(outputs[i], ints.Const(0), g.grad.sizes[i], mask);
  }
  return outputs;
}

absl::Status CheckAdaptive(NodeContext& n, const Gradient& g) {
  for (size_t d = g.first; d < g.self.sizes.size(); ++d) {
    if (g.self.sizes[d].range().min < 1 || g.grad.sizes[d].range().min < 1) {
      return n.Decline("of a size that may be 0");
    }
  }
  return absl::OkStatus();
}

// _adaptive_avg_poolNd_backward(grad_output, self)
absl::Status LowerAdaptiveAvgPoolBackward(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Gradient g, ReadGradient(n, spatial));
  KILN_RETURN_IF_ERROR(CheckAdaptive(n, g));
  const View scaled = Scaled(n, g, [&](const Ints& at) {
    IntExpr count = n.ints().Const(1);
    for (size_t d = g.first; d < at.size(); ++d) {
      const auto [start, end] = AdaptiveRangeOf(n.ints(), at[d], g.self.sizes[d], g.grad.sizes[d]);
      count = n.ints().Mul(count, n.ints().Sub(end, start));
    }
    return count;
  });
  EmitGather(n, AdaptiveExtents(n, g), [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
    Scalar mask;
    const Ints outputs = AdaptiveOutputs(b, g, at, inner, mask);
    return b.LoadMasked(scaled, outputs, mask, 0);
  });
  return absl::OkStatus();
}

// adaptive_max_poolNd_backward(grad_output, self, indices)
absl::Status LowerAdaptiveMaxPoolBackward(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Gradient g, ReadGradient(n, spatial));
  KILN_RETURN_IF_ERROR(CheckAdaptive(n, g));
  KILN_ASSIGN_OR_RETURN(const View indices, n.Tensor(2, "indices"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(indices.sizes, g.grad.sizes, "the indices"));
  if (indices.dtype != DType::kI64) return n.Decline("with indices that are no i64");
  EmitGather(n, AdaptiveExtents(n, g), [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
    Scalar mask;
    const Ints outputs = AdaptiveOutputs(b, g, at, inner, mask);
    return WhereChosen(b, g, indices, outputs, mask, at);
  });
  return absl::OkStatus();
}

// replication_padNd_backward(grad_output, self, padding): the padding holds (before, after) from
// the last dimension backwards; an element at an edge also sums what was copied beyond it.
absl::Status LowerReplicationPadBackward(NodeContext& n, size_t spatial) {
  KILN_ASSIGN_OR_RETURN(const Gradient g, ReadGradient(n, spatial));
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> padding, n.ConstIntList(2, "padding"));
  if (padding.size() != 2 * spatial) return n.BadGraph("the padding", "two items a dimension");
  ir::IntContext& ints = n.ints();
  std::vector<int64_t> before(spatial), low(spatial);
  Ints extents;
  for (size_t d = 0; d < spatial; ++d) {
    before[d] = padding[2 * (spatial - 1 - d)];
    const int64_t after = padding[2 * (spatial - 1 - d) + 1];
    const int64_t limit = int64_t{1} << 20;
    if (std::abs(before[d]) > limit || std::abs(after) > limit) return n.Decline("so wide");
    low[d] = std::max<int64_t>(before[d], 0);
    extents.push_back(ints.Const(low[d] + std::max<int64_t>(after, 0) + 1));
  }
  EmitGather(n, extents, [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
    Ints outputs = at;
    Scalar mask;
    for (size_t d = 0; d < spatial; ++d) {
      const size_t i = g.first + d;
      const IntExpr source = ints.Add(ints.Add(at[i], inner[d]), -low[d]);  // before clamping
      outputs[i] = ints.Add(source, before[d]);
      b.AddBounds(outputs[i], ints.Const(0), g.grad.sizes[i], mask);
      const IntExpr last = ints.Add(g.self.sizes[i], -1);
      const IntExpr clamped = ints.Min(ints.Max(source, ints.Const(0)), last);
      const IntExpr distance = ints.Sub(clamped, at[i]);
      if (distance.is_const(0)) continue;
      const Scalar is_own = b.Op(kEq, b.Index(clamped), b.Index(at[i]));
      mask = mask.id == ir::kNoValue ? is_own : b.And(mask, is_own);
    }
    return b.LoadMasked(g.grad, outputs, mask, 0);
  });
  return absl::OkStatus();
}

// col2im(self, output_size, kernel_size, dilation, padding, stride): the gradient of taking windows
// apart. Column w of `self` holds window w, its rows are (channel, place in the window).
absl::Status LowerCol2Im(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  Window w;
  KILN_ASSIGN_OR_RETURN(w.kernel, n.SpatialList(2, "kernel_size", 2, 1));
  KILN_ASSIGN_OR_RETURN(w.dilation, n.SpatialList(3, "dilation", 2, 1));
  KILN_ASSIGN_OR_RETURN(w.padding, n.SpatialList(4, "padding", 2, 0));
  KILN_ASSIGN_OR_RETURN(w.stride, n.SpatialList(5, "stride", 2, 1));
  ir::IntContext& ints = n.ints();
  const Ints& sizes = n.Result(0).sizes;
  const size_t first = sizes.size() - 2;
  if (self.sizes.size() < 2 || sizes.size() != self.sizes.size() + 1) {
    return n.BadGraph("ranks of argument and result", "one more in the result");
  }
  if (!IsFloat(self.dtype)) return n.Decline("of integers");
  Ints windows, extents;  // how many there are by dimension
  for (size_t d = 0; d < 2; ++d) {
    if (w.kernel[d] < 1 || w.stride[d] < 1 || w.dilation[d] < 1) {
      return n.BadGraph("a kernel, stride or dilation of size 0", "1 or more");
    }
    if (w.stride[d] > w.kernel[d]) return n.Decline("of windows with gaps");
    const int64_t reach = (w.kernel[d] - 1) * w.dilation[d] + 1;
    const IntExpr room = ints.Add(sizes[first + d], 2 * w.padding[d] - reach);
    windows.push_back(ints.Add(ints.FloorDiv(room, w.stride[d]), 1));
    // Only every stride-th place can be the element's, which without dilation are known.
    const int64_t step = w.dilation[d] == 1 ? w.stride[d] : 1;
    extents.push_back(ints.Const((w.kernel[d] + step - 1) / step));
  }
  Ints expected(sizes.begin(), sizes.end() - 2);
  expected.back() = ints.Mul(expected.back(), w.Volume());
  expected.push_back(ints.Product(windows));
  KILN_RETURN_IF_ERROR(n.CheckSizes(self.sizes, expected, "the argument"));
  EmitGather(n, extents, [&](KernelBuilder& b, const Ints& at, const Ints& inner) {
    Scalar mask;
    Ints source(at.begin(), at.end() - 2);
    IntExpr row = source.back(), column = ints.Const(0);
    for (size_t d = 0; d < 2; ++d) {
      const IntExpr padded = ints.Add(at[first + d], w.padding[d]);
      IntExpr place = inner[d];
      if (w.dilation[d] == 1) {
        place = ints.Add(ints.Mod(padded, w.stride[d]), ints.Mul(inner[d], w.stride[d]));
        b.AddBounds(place, ints.Const(0), ints.Const(w.kernel[d]), mask);
      }
      const IntExpr start = ints.Sub(padded, ints.Mul(place, w.dilation[d]));
      const IntExpr window = ints.FloorDiv(start, w.stride[d]);
      b.AddBounds(window, ints.Const(0), windows[d], mask);
      if (w.dilation[d] > 1 && w.stride[d] > 1) {
        const Scalar rest = b.Index(ints.Mod(start, w.stride[d]));
        const Scalar starts = b.Op(kEq, rest, b.ConstInt(DType::kI64, 0));
        mask = mask.id == ir::kNoValue ? starts : b.And(mask, starts);
      }
      row = ints.Add(ints.Mul(row, w.kernel[d]), place);
      column = ints.Add(ints.Mul(column, windows[d]), window);
    }
    source.back() = row;
    source.push_back(column);
    return b.LoadMasked(self, source, mask, 0);
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterPoolingBackward(Registry& registry) {
  const auto add = [&](const std::string& op, absl::Status (*lower)(NodeContext&, size_t),
                       size_t rank) {
    registry[op + ".default"] = [=](NodeContext& n) { return lower(n, rank); };
  };
  registry["col2im.default"] = LowerCol2Im;
  for (const size_t rank : {1, 2, 3}) {
    const std::string d = std::to_string(rank) + "d";
    add("max_pool" + d + "_with_indices_backward", LowerMaxPoolBackward, rank);
    add("avg_pool" + d + "_backward", LowerAvgPoolBackward, rank);
    add("_adaptive_avg_pool" + d + "_backward", LowerAdaptiveAvgPoolBackward, rank);
    add("adaptive_max_pool" + d + "_backward", LowerAdaptiveMaxPoolBackward, rank);
    add("replication_pad" + d + "_backward", LowerReplicationPadBackward, rank);
  }
}

}  // namespace kiln::lowering
