// The image of a convolution from its result and its weight: a transposed convolution, and the
// gradient of the input.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/lowering/convolution_product.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

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
    return k.Load(weight,
                  Join({{channel(outer[1], c.out_channels, inner[0]), outer[2]}, part(outer, 0)}));
  };
  product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
    return k.Load(out,
                  Join({{outer[0], channel(outer[1], c.out_channels, inner[0])}, part(outer, 1)}));
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
// element j of its taps stands for kernel element offset + j*stride, offset being
// (phase + padding) % stride, read at place + (phase + padding) / stride - j*dilation. Only one of
// stride and dilation may exceed 1.
struct Taps {
  const Window& window;
  size_t d;

  int64_t stride() const { return window.stride[d]; }
  // Of those offsets that have most.
  int64_t most() const { return (window.kernel[d] + stride() - 1) / stride(); }
  IntExpr Offset(ir::IntContext& ints, IntExpr at) const {
    return ints.Mod(ints.Add(at, window.padding[d]), stride());
  }
  IntExpr Kernel(ir::IntContext& ints, IntExpr offset, IntExpr j) const {
    return ints.Add(offset, ints.Mul(j, stride()));
  }
  IntExpr Place(ir::IntContext& ints, IntExpr place, IntExpr phase, IntExpr j) const {
    const IntExpr shift = ints.FloorDiv(ints.Add(phase, window.padding[d]), stride());
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
    inner_sizes.push_back(ints.Const(has_taps ? Taps{c.window, d}.most() : c.window.kernel[d]));
  }
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(Join(
      {{image.sizes[0], ints.Const(c.groups), ints.Const(c.in_channels)}, Spatial(image.sizes)}));
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
      at_weight.push_back(taps.Kernel(ints, taps.Offset(ints, at), j));
      at_out.push_back(taps.Place(ints, ints.FloorDiv(at, stride), phase, j));
      continue;
    }
    const IntExpr distance =
        ints.Sub(ints.Add(at, c.window.padding[d]), ints.Mul(j, c.window.dilation[d]));
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
    low.push_back((Taps{w, d}.most() - 1) * w.dilation[d] - least);
    sizes.push_back(n.ints().Add(places[d], most + low[d]));
  }
  return PadPlaces(n, c, out, c.in_channels >= kChannelsOfPanel, low, sizes);
}

// Offsets of one spatial dimension that have equally many taps.
struct OffsetRange {
  int64_t begin, end, taps;
};

// The elements of the image that agree in their remainders by the strides (their phase) share the
// parts of the kernel that reach them, so each phase is a dense convolution of its own; strides of
// 1 have one phase. Phases with equally many taps in each dimension are one product; a last kernel
// puts them together.
class PhasedImage {
 public:
  PhasedImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
              const View& image)
      : n_(n),
        ints_(n.ints()),
        c_(c),
        weight_(weight),
        image_(image),
        spatial_(c.window.kernel.size()) {
    for (size_t d = 0; d < spatial_; ++d) {
      places_.push_back(ints_.CeilDiv(image.sizes[d + 2], ints_.Const(c.window.stride[d])));
    }
    padded_ = PadForTaps(n, c, out, places_);
  }

  void Emit() {
    std::vector<std::vector<OffsetRange>> all(1);  // each one range a dimension
    bool has_phases = false;
    for (size_t d = 0; d < spatial_; ++d) {
      has_phases |= c_.window.stride[d] > 1;
      std::vector<std::vector<OffsetRange>> longer;
      for (const std::vector<OffsetRange>& ranges : all) {
        for (const OffsetRange& range : RangesOf(d)) {
          longer.push_back(ranges);
          longer.back().push_back(range);
        }
      }
      all = std::move(longer);
    }
    if (!has_phases) return EmitPart(all[0], image_, false);
    std::vector<Part> parts;
    for (const std::vector<OffsetRange>& ranges : all) {
      parts.push_back({ranges, std::nullopt});
      if (std::any_of(ranges.begin(), ranges.end(), [](const auto& r) { return r.taps == 0; })) {
        continue;
      }
      Ints phases;
      for (const OffsetRange& range : ranges) {
        phases.push_back(ints_.Const(range.end - range.begin));
      }
      // [phase.., n, channel, place..]
      parts.back().view = n_.NewTemp(
          Join({phases, {image_.sizes[0], ints_.Const(c_.groups * c_.in_channels)}, places_}),
          c_.compute);
      EmitPart(ranges, *parts.back().view, true);
    }
    PutTogether(parts);
  }

 private:
  struct Part {
    std::vector<OffsetRange> ranges;
    std::optional<View> view;  // nothing where no window reaches
  };

  std::vector<OffsetRange> RangesOf(size_t d) const {
    const int64_t stride = c_.window.stride[d], taps = c_.window.kernel[d] / stride;
    const int64_t rest = c_.window.kernel[d] % stride;
    if (rest == 0) return {{0, stride, taps}};
    // Products of few channels are too short to be worth several: they take zeros for missing taps.
    if (c_.in_channels < kChannelsOfPanel) return {{0, stride, taps + 1}};
    return {{0, rest, taps + 1}, {rest, stride, taps}};
  }

  void EmitPart(const std::vector<OffsetRange>& ranges, const View& part, bool has_phases) {
    Ints phases, taps;
    for (const OffsetRange& range : ranges) {
      phases.push_back(ints_.Const(range.end - range.begin));
      taps.push_back(ints_.Const(range.taps));
    }
    const Ints batch{image_.sizes[0], ints_.Const(c_.groups), ints_.Const(c_.in_channels)};
    const Ints out_channels{ints_.Const(c_.out_channels)};
    const size_t first_tap = padded_.is_last ? 0 : 1, at_channel = padded_.is_last ? spatial_ : 0;
    Product product{Join({phases, batch, places_}),
                    padded_.is_last ? Join({taps, out_channels}) : Join({out_channels, taps}),
                    {},
                    {},
                    {}};
    const auto offset = [&](const Ints& outer, size_t d) {
      return ints_.Add(outer[d], ranges[d].begin);
    };
    const auto out_channel = [&](const Ints& outer, const Ints& inner) {
      return ints_.Add(ints_.Mul(outer[spatial_ + 1], c_.out_channels), inner[at_channel]);
    };
    product.a = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
      Ints at{out_channel(outer, inner), outer[spatial_ + 2]};
      for (size_t d = 0; d < spatial_; ++d) {
        at.push_back(Taps{c_.window, d}.Kernel(ints_, offset(outer, d), inner[first_tap + d]));
      }
      return k.LoadMasked(weight_, at, InsideMask(k, weight_.sizes, at), 0);
    };
    product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
      Ints place;
      for (size_t d = 0; d < spatial_; ++d) {
        const IntExpr phase =
            ints_.Mod(ints_.Add(offset(outer, d), -c_.window.padding[d]), c_.window.stride[d]);
        place.push_back(
            Taps{c_.window, d}.Place(ints_, outer[spatial_ + 3 + d], phase, inner[first_tap + d]));
      }
      return LoadPadded(k, padded_, outer[spatial_], out_channel(outer, inner), place);
    };
    product.at_out = [&](const Ints& outer) {
      const IntExpr channel =
          ints_.Add(ints_.Mul(outer[spatial_ + 1], c_.in_channels), outer[spatial_ + 2]);
      const Ints at =
          Join({{outer[spatial_], channel}, lowering::Part(outer, spatial_ + 3, spatial_)});
      return has_phases ? Join({lowering::Part(outer, 0, spatial_), at}) : at;
    };
    EmitProduct(n_, c_, product, part, true);
  }

  void PutTogether(const std::vector<Part>& parts) {
    n_.Pointwise(image_, [&](KernelBuilder& b, const Ints& at) {
      Scalar result;
      for (const Part& part : parts) {
        Ints phase, place;
        Scalar mask;  // none where the part is the whole image
        for (size_t d = 0; d < spatial_; ++d) {
          const OffsetRange& range = part.ranges[d];
          const IntExpr offset = Taps{c_.window, d}.Offset(ints_, at[d + 2]);
          b.AddBounds(offset, ints_.Const(range.begin), ints_.Const(range.end), mask);
          phase.push_back(ints_.Add(offset, -range.begin));
          place.push_back(ints_.FloorDiv(at[d + 2], c_.window.stride[d]));
        }
        const Scalar value =
            part.view ? b.LoadMasked(*part.view, Join({phase, {at[0], at[1]}, place}), mask, 0)
                      : b.Const(c_.compute, 0.0);
        const bool is_first = result.id == ir::kNoValue;
        result = is_first || mask.id == ir::kNoValue ? value : b.Select(mask, value, result);
      }
      return result;
    });
  }

  NodeContext& n_;
  ir::IntContext& ints_;
  const Convolution& c_;
  const View &weight_, &image_;
  const size_t spatial_;
  Ints places_;
  Padded padded_;
};

}  // namespace

void EmitImage(NodeContext& n, const Convolution& c, const View& out, const View& weight,
               const View& image) {
  if (WindowsAreDisjoint(c.window)) return EmitDisjointImage(n, c, out, weight, image);
  if (!HasTaps(c.window) || c.in_channels == 1 || c.out_channels == 1) {
    return EmitImageDirectly(n, c, out, weight, image);
  }
  PhasedImage(n, c, out, weight, image).Emit();
}

}  // namespace kiln::lowering
