// The other two products of a convolution: the image from the result and the weight (a transposed
// convolution, and the gradient of the input), and the weight from both (its gradient).
#include <functional>
#include <utility>
#include <vector>

#include "compiler/lowering/convolution.h"
#include "compiler/lowering/reduction.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

Ints Join(std::initializer_list<Ints> parts) {
  Ints all;
  for (const Ints& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Ints Spatial(const Ints& sizes) {
  return Ints(sizes.begin() + 2, sizes.end());
}

Ints Consts(ir::IntContext& ints, const std::vector<int64_t>& values) {
  Ints exprs;
  for (const int64_t value : values) exprs.push_back(ints.Const(value));
  return exprs;
}

// A temporary that a contraction reads in place, filled by `body`.
View Pack(NodeContext& n, const Convolution& c, const Ints& sizes, const NodeContext::Body& body) {
  const View packed = n.NewTemp(sizes, c.compute);
  KernelBuilder b = n.NewKernel();
  const Ints at = b.Outer(sizes);
  b.StartPhase();
  b.Store(packed, at, body(b, at));
  b.Finish(ir::Schedule::kPacking);
  return packed;
}

// With so many channels, panels are made of channels; with fewer, of places or the kernel's elements.
constexpr int64_t kChannelsOfPanel = 16;

// A copy of a tensor [n, channel, place..] with `low` zeros before each spatial dimension (elements
// cut off, where negative) and so many after it that `sizes` are filled: contractions read it without
// masks. Its channels are last where `is_last`.
struct Padded {
  View view;
  bool is_last = false;
  std::vector<int64_t> low;
};

Padded PadPlaces(NodeContext& n, const Convolution& c, const View& x, bool is_last,
                 const std::vector<int64_t>& low, const Ints& sizes) {
  ir::IntContext& ints = n.ints();
  const Ints batch{x.sizes[0]}, channels{x.sizes[1]};
  const View view =
      Pack(n, c, is_last ? Join({batch, sizes, channels}) : Join({batch, channels, sizes}),
           [&](KernelBuilder& b, const Ints& at) {
             Ints source{at[0], is_last ? at.back() : at[1]};
             for (size_t d = 0; d < low.size(); ++d) {
               source.push_back(ints.Add(at[d + (is_last ? 1 : 2)], -low[d]));
             }
             const Scalar mask = InsideMask(b, x.sizes, source);
             return b.Cast(b.LoadMasked(x, source, mask, 0), c.compute);
           });
  return {view, is_last, low};
}

// Element (n, channel, place..) of what was padded.
Scalar LoadPadded(KernelBuilder& k, const Padded& padded, IntExpr batch, IntExpr channel,
                  Ints place) {
  for (size_t d = 0; d < place.size(); ++d) place[d] = k.ints().Add(place[d], padded.low[d]);
  return k.Load(padded.view, padded.is_last ? Join({{batch}, place, {channel}})
                                            : Join({{batch, channel}, place}));
}

Ints Slice(const Ints& all, size_t begin, size_t count) {
  return Ints(all.begin() + begin, all.begin() + begin + count);
}

// One kernel: sum over `inner` of a * b, stored at `at_out`.
struct Product {
  Ints outer, inner;
  std::function<Scalar(KernelBuilder&, const Ints& outer, const Ints& inner)> a, b;
  std::function<Ints(const Ints& outer)> at_out;
};

void EmitProduct(NodeContext& n, const Convolution& c, const Product& product, const View& out,
                 bool is_blocked) {
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(product.outer);
  const Ints inner = k.StartPhase(product.inner);
  const Scalar a = k.Cast(product.a(k, outer, inner), c.compute);
  const Scalar b = k.Cast(product.b(k, outer, inner), c.compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, a, b));
  k.StartPhase();
  k.Store(out, product.at_out(outer), sum);
  k.Finish(is_blocked ? ir::Schedule::kContraction : ir::Schedule::kLoops);
}

// ---- The image -----------------------------------------------------------------------------

// Whether no element of the image is in two windows of the result.
bool WindowsAreDisjoint(const Window& w) {
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    if (w.kernel[d] > 1 && (w.kernel[d] > w.stride[d] || w.dilation[d] > 1)) return false;
  }
  return true;
}

// Each element of the image is one row of a matrix product at most: made where the windows are,
// spread out by a second kernel.
void EmitDisjointImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
                       const View& image) {
  ir::IntContext& ints = n.ints();
  const size_t spatial = c.window.kernel.size();
  bool is_direct = c.window.Volume() == 1;
  for (size_t d = 0; d < spatial; ++d) {
    is_direct &= c.window.stride[d] == 1 && c.window.padding[d] == 0 &&
                 image.sizes[d + 2] == out.sizes[d + 2];
  }
  const Ints kernel = Consts(ints, c.window.kernel);
  const Ints batch{out.sizes[0], ints.Const(c.groups), ints.Const(c.in_channels)};
  const Ints places = Spatial(out.sizes);
  const IntExpr channels = ints.Const(c.groups * c.in_channels);
  const View target =
      is_direct ? image : n.NewTemp(Join({{out.sizes[0], channels}, kernel, places}), c.compute);
  const auto part = [spatial](const Ints& outer, size_t i) {
    return Ints(outer.begin() + 3 + i * spatial, outer.begin() + 3 + (i + 1) * spatial);
  };
  const auto channel = [&](IntExpr group, int64_t size, IntExpr i) {
    return ints.Add(ints.Mul(group, size), i);
  };
  Product product{Join({batch, kernel, places}), {ints.Const(c.out_channels)}, {}, {}, {}};
  product.a = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    return k.Load(weight, Join({{channel(outer[1], c.out_channels, inner[0]), outer[2]},
                                part(outer, 0)}));
  };
  product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    return k.Load(out, Join({{outer[0], channel(outer[1], c.out_channels, inner[0])},
                             part(outer, 1)}));
  };
  product.at_out = [&](const Ints& outer) {
    const Ints at{outer[0], channel(outer[1], c.in_channels, outer[2])};
    return is_direct ? Join({at, part(outer, 1)}) : Join({at, part(outer, 0), part(outer, 1)});
  };
  EmitProduct(n, c, product, target, c.in_channels * c.window.Volume() > 1 && c.out_channels > 1);
  if (is_direct) return;
  n.Pointwise(image, [&](KernelBuilder& b, const Ints& at) {
    Ints offsets, windows;
    Scalar mask;
    for (size_t d = 0; d < spatial; ++d) {
      const IntExpr shifted = ints.Add(at[d + 2], c.window.padding[d]);
      offsets.push_back(ints.Mod(shifted, c.window.stride[d]));
      windows.push_back(ints.FloorDiv(shifted, c.window.stride[d]));
      b.AddBounds(offsets[d], ints.Const(0), kernel[d], mask);
      b.AddBounds(windows[d], ints.Const(0), places[d], mask);
    }
    return b.LoadMasked(target, Join({{at[0], at[1]}, offsets, windows}), mask, 0);
  });
}

// What one spatial dimension of the image's element at stride*place + phase takes its sum over:
// element j of `taps` stands for kernel element (phase + padding) % stride + j*stride, read at
// place + (phase + padding) / stride - j*dilation. Only one of stride and dilation may exceed 1.
struct Taps {
  const Window& window;
  size_t d;

  int64_t count() const {
    return (window.kernel[d] + window.stride[d] - 1) / window.stride[d];
  }
  IntExpr Kernel(ir::IntContext& ints, IntExpr phase, IntExpr j) const {
    const IntExpr first = ints.Mod(ints.Add(phase, window.padding[d]), window.stride[d]);
    return ints.Add(first, ints.Mul(j, window.stride[d]));
  }
  IntExpr Place(ir::IntContext& ints, IntExpr place, IntExpr phase, IntExpr j) const {
    const IntExpr shift = ints.FloorDiv(ints.Add(phase, window.padding[d]), window.stride[d]);
    return ints.Sub(ints.Add(place, shift), ints.Mul(j, window.dilation[d]));
  }
};

bool HasTaps(const Window& w) {
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    if (w.stride[d] > 1 && w.dilation[d] > 1) return false;
  }
  return true;
}

// A sum over all of the kernel for each element, by plain loops: any stride and dilation, and few
// channels.
void EmitImageDirectly(NodeContext& n, const Convolution& c, const View& out, const View& weight,
                       const View& image) {
  ir::IntContext& ints = n.ints();
  const size_t spatial = c.window.kernel.size();
  const bool has_taps = HasTaps(c.window);
  Ints inner_sizes{ints.Const(c.out_channels)};
  for (size_t d = 0; d < spatial; ++d) {
    inner_sizes.push_back(ints.Const(has_taps ? Taps{c.window, d}.count() : c.window.kernel[d]));
  }
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(Join({{image.sizes[0], ints.Const(c.groups),
                                    ints.Const(c.in_channels)}, Spatial(image.sizes)}));
  const Ints inner = k.StartPhase(inner_sizes);
  const IntExpr out_channel = ints.Add(ints.Mul(outer[1], c.out_channels), inner[0]);
  Ints at_weight{out_channel, outer[2]}, at_out{outer[0], out_channel};
  Scalar is_whole;  // the window that reaches this element by this part of the kernel exists
  for (size_t d = 0; d < spatial; ++d) {
    const IntExpr at = outer[d + 3], j = inner[d + 1];
    if (has_taps) {
      const Taps taps{c.window, d};
      const int64_t stride = c.window.stride[d];
      const IntExpr phase = ints.Mod(at, stride);
      at_weight.push_back(taps.Kernel(ints, phase, j));
      at_out.push_back(taps.Place(ints, ints.FloorDiv(at, stride), phase, j));
      continue;
    }
    const IntExpr distance = ints.Sub(ints.Add(at, c.window.padding[d]),
                                      ints.Mul(j, c.window.dilation[d]));
    const IntExpr rest = ints.Mod(distance, c.window.stride[d]);
    k.AddBounds(rest, ints.Const(0), ints.Const(1), is_whole);
    at_weight.push_back(j);
    at_out.push_back(ints.FloorDiv(distance, c.window.stride[d]));
  }
  const Scalar in_kernel = InsideMask(k, weight.sizes, at_weight);
  const Scalar factor = k.Cast(k.LoadMasked(weight, at_weight, in_kernel, 0), c.compute);
  for (size_t d = 0; d < spatial; ++d) {
    k.AddBounds(at_out[d + 2], ints.Const(0), out.sizes[d + 2], is_whole);
  }
  const Scalar element = k.Cast(k.LoadMasked(out, at_out, is_whole, 0), c.compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, factor, element));
  k.StartPhase();
  Ints at{outer[0], ints.Add(ints.Mul(outer[1], c.in_channels), outer[2])};
  at.insert(at.end(), outer.begin() + 3, outer.end());
  k.Store(image, at, sum);
  k.Finish();
}

// `out` with zeros as far as the taps of any element of the image reach.
Padded PadForTaps(NodeContext& n, const Convolution& c, const View& out, const Ints& places) {
  const Window& w = c.window;
  std::vector<int64_t> low;
  Ints sizes;
  for (size_t d = 0; d < w.kernel.size(); ++d) {
    const int64_t least = w.padding[d] / w.stride[d];
    const int64_t most = (w.padding[d] + w.stride[d] - 1) / w.stride[d];
    low.push_back((Taps{w, d}.count() - 1) * w.dilation[d] - least);
    sizes.push_back(n.ints().Add(places[d], most + low[d]));
  }
  return PadPlaces(n, c, out, c.in_channels >= kChannelsOfPanel, low, sizes);
}

// The elements of the image that agree in their remainders by the strides (their phase) share the
// parts of the kernel that reach them, so each phase is a dense convolution of its own; strides of 1
// have one phase. A last kernel puts the phases together.
void EmitPhasedImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
                     const View& image) {
  ir::IntContext& ints = n.ints();
  const size_t spatial = c.window.kernel.size();
  const Ints phases = Consts(ints, c.window.stride);
  const bool has_phases = !ints.Product(phases).is_const(1);
  Ints taps, places;
  for (size_t d = 0; d < spatial; ++d) {
    taps.push_back(ints.Const(Taps{c.window, d}.count()));
    places.push_back(ints.CeilDiv(image.sizes[d + 2], phases[d]));
  }
  const Padded padded = PadForTaps(n, c, out, places);
  // [phase.., n, channel, place..]
  const IntExpr channels = ints.Const(c.groups * c.in_channels);
  const View parts =
      has_phases ? n.NewTemp(Join({phases, {image.sizes[0], channels}, places}), c.compute) : image;
  const Ints batch{image.sizes[0], ints.Const(c.groups), ints.Const(c.in_channels)};
  const Ints out_channels{ints.Const(c.out_channels)};
  const size_t first_tap = padded.is_last ? 0 : 1, at_channel = padded.is_last ? spatial : 0;
  Product product{Join({phases, batch, places}),
                  padded.is_last ? Join({taps, out_channels}) : Join({out_channels, taps}),
                  {}, {}, {}};
  const auto out_channel = [&](const Ints& outer, const Ints& inner) {
    return ints.Add(ints.Mul(outer[spatial + 1], c.out_channels), inner[at_channel]);
  };
  product.a = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    Ints at{out_channel(outer, inner), outer[spatial + 2]};
    for (size_t d = 0; d < spatial; ++d) {
      at.push_back(Taps{c.window, d}.Kernel(ints, outer[d], inner[first_tap + d]));
    }
    return k.LoadMasked(weight, at, InsideMask(k, weight.sizes, at), 0);
  };
  product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    Ints place;
    for (size_t d = 0; d < spatial; ++d) {
      place.push_back(Taps{c.window, d}.Place(ints, outer[spatial + 3 + d], outer[d],
                                              inner[first_tap + d]));
    }
    return LoadPadded(k, padded, outer[spatial], out_channel(outer, inner), place);
  };
  product.at_out = [&](const Ints& outer) {
    const IntExpr channel =
        ints.Add(ints.Mul(outer[spatial + 1], c.in_channels), outer[spatial + 2]);
    const Ints at = Join({{outer[spatial], channel}, Slice(outer, spatial + 3, spatial)});
    return has_phases ? Join({Slice(outer, 0, spatial), at}) : at;
  };
  EmitProduct(n, c, product, parts, true);
  if (!has_phases) return;
  n.Pointwise(image, [&](KernelBuilder& b, const Ints& at) {
    Ints phase, place;
    for (size_t d = 0; d < spatial; ++d) {
      phase.push_back(ints.Mod(at[d + 2], phases[d]));
      place.push_back(ints.FloorDiv(at[d + 2], phases[d]));
    }
    return b.Load(parts, Join({phase, {at[0], at[1]}, place}));
  });
}

}  // namespace

void EmitImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
               const View& image) {
  if (WindowsAreDisjoint(c.window)) return EmitDisjointImage(n, c, out, weight, image);
  if (!HasTaps(c.window) || c.in_channels == 1 || c.out_channels == 1) {
    return EmitImageDirectly(n, c, out, weight, image);
  }
  EmitPhasedImage(n, c, out, weight, image);
}

// ---- The weight ----------------------------------------------------------------------------

void EmitWeight(NodeContext& n, const Convolution& c, const View& out, const View& image,
                const View& weight) {
  ir::IntContext& ints = n.ints();
  const Window& w = c.window;
  const size_t spatial = w.kernel.size();
  const bool is_blocked = c.out_channels > 1 && c.in_channels * w.Volume() > 1;
  const bool is_wide = is_blocked && c.in_channels >= kChannelsOfPanel;
  Padded padded_out, padded_image;
  if (is_blocked) {
    Ints reach;
    for (size_t d = 0; d < spatial; ++d) {
      const int64_t beyond = (w.kernel[d] - 1) * w.dilation[d] + 1 - w.stride[d];
      reach.push_back(ints.Add(ints.Mul(out.sizes[d + 2], w.stride[d]), beyond));
    }
    const std::vector<int64_t> none(spatial, 0);
    padded_out = PadPlaces(n, c, out, true, none, Spatial(out.sizes));
    padded_image = PadPlaces(n, c, image, is_wide, w.padding, reach);
  }
  const Ints channels{ints.Const(c.groups), ints.Const(c.out_channels)};
  const Ints in_channels{ints.Const(c.in_channels)}, kernel = Consts(ints, w.kernel);
  const size_t first_offset = is_wide ? 2 : 3, in_channel = is_wide ? 2 + spatial : 2;
  Product product{is_wide ? Join({channels, kernel, in_channels})
                          : Join({channels, in_channels, kernel}),
                  Join({{out.sizes[0]}, Spatial(out.sizes)}), {}, {}, {}};
  product.a = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    const IntExpr channel = ints.Add(ints.Mul(outer[0], c.out_channels), outer[1]);
    const Ints place = Slice(inner, 1, spatial);
    if (is_blocked) return LoadPadded(k, padded_out, inner[0], channel, place);
    return k.Load(out, Join({{inner[0], channel}, place}));
  };
  product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    const IntExpr channel = ints.Add(ints.Mul(outer[0], c.in_channels), outer[in_channel]);
    Ints place;
    for (size_t d = 0; d < spatial; ++d) {
      place.push_back(WindowIndex(ints, w, d, inner[d + 1], outer[first_offset + d]));
    }
    if (is_blocked) return LoadPadded(k, padded_image, inner[0], channel, place);
    const Ints at = Join({{inner[0], channel}, place});
    return k.LoadMasked(image, at, InsideMask(k, image.sizes, at), 0);
  };
  product.at_out = [&](const Ints& outer) {
    const IntExpr channel = ints.Add(ints.Mul(outer[0], c.out_channels), outer[1]);
    return Join({{channel, outer[in_channel]}, Slice(outer, first_offset, spatial)});
  };
  EmitProduct(n, c, product, weight, is_blocked);
}

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
  const View& image = c.is_transposed ? grad : input;
  const View& out = c.is_transposed ? input : grad;
  KILN_RETURN_IF_ERROR(CheckConvolution(n, c, image, out));
  const bool is_empty = IsEmpty(grad.sizes) || IsEmpty(input.sizes) || IsEmpty(weight.sizes);
  const auto is_wanted = [&](size_t i) { return wanted[i] != 0 && n.ResultUsed(i); };
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
