// The weight of a convolution from its image and its result: the gradient of the weight.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/lowering/convolution_product.h"

namespace kiln::lowering {
namespace {

using ir::IntExpr;

// The sum over batch and places in parts, each a product of its own: part p of `parts` takes batch
// elements p[0]*size[0] onwards and rows p[1]*size[1] onwards. A part's panel stays in the
// second-level cache, and shorter chains of additions are more accurate.
struct Parts {
  int64_t parts[2] = {1, 1}, size[2] = {0, 0};
};

constexpr int64_t kPlacesOfPart = 2048;

// The greatest divisor of `size` that keeps `size * each` within a part; 1 at least.
int64_t PartOf(int64_t size, int64_t each) {
  int64_t part = std::max<int64_t>(std::min(size, kPlacesOfPart / std::max<int64_t>(each, 1)), 1);
  while (size % part != 0) --part;
  return part;
}

// Nothing where it is one part, or the sizes are symbolic.
std::optional<Parts> SplitPlaces(const Ints& sizes) {
  int64_t row = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!sizes[i].is_const()) return std::nullopt;
    if (i > 2) row *= sizes[i].value();
  }
  const int64_t batch = sizes[0].value(), rows = sizes[2].value();
  Parts p;
  p.size[1] = PartOf(rows, row);
  p.size[0] = p.size[1] == rows ? PartOf(batch, rows * row) : 1;
  p.parts[0] = batch / p.size[0];
  p.parts[1] = rows / p.size[1];
  if (p.parts[0] * p.parts[1] == 1) return std::nullopt;
  return p;
}

// Where channels come last, rows of the image are laid out in fewer cycles, but each weight is
// stored on its own, far from the last: 0.26 ns a row's element beside 1.2 ns a weight (Zen 4,
// ResNet-50).
constexpr int64_t kPlacesOfWeight = 8;

// Loops: parts, group, o, then the kernel and i: what the weight has last where there are many
// weights, else the greater of the two, for panels are made of it.
class WeightEmitter {
 public:
  WeightEmitter(NodeContext& n, const Convolution& c, const View& out, const View& image)
      : n_(n),
        ints_(n.ints()),
        c_(c),
        out_(out),
        image_(image),
        spatial_(c.window.kernel.size()),
        is_blocked_(c.out_channels > 1 && c.in_channels * c.window.Volume() > 1),
        is_wide_(is_blocked_ && c.in_channels >= kChannelsOfPanel && StoresFewWeights()) {}

  void Emit(const View& weight) {
    if (is_blocked_) {
      Pad();
      split_ = SplitPlaces(out_.sizes);
      if (split_ && !IsWorthSplitting()) split_.reset();
    }
    Ints parts;
    Ints places = Join({{out_.sizes[0]}, Spatial(out_.sizes)});
    for (size_t i = 0; split_ && i < 2; ++i) {
      parts.push_back(ints_.Const(split_->parts[i]));
      places[i] = ints_.Const(split_->size[i]);
    }
    group_ = parts.size();
    const Ints channels{ints_.Const(c_.groups), ints_.Const(c_.out_channels)};
    Product product{Join({parts, channels, InOrder()}), places, {}, {}, {}};
    product.a = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
      return LoadOut(k, outer, PlaceOf(outer, inner));
    };
    product.b = [&](KernelBuilder& k, const Ints& outer, const Ints& inner) {
      return LoadImage(k, outer, PlaceOf(outer, inner));
    };
    if (!split_) {
      product.at_out = [&](const Ints& outer) {
        return Join({{OutChannel(outer), outer[AtChannel()]}, Offsets(outer)});
      };
      return EmitProduct(n_, c_, product, weight, is_blocked_);
    }
    const IntExpr out_channels = ints_.Const(c_.groups * c_.out_channels);
    const View sums = n_.NewTemp(Join({parts, {out_channels}, InOrder()}), c_.compute);
    product.at_out = [&](const Ints& outer) {
      return Join({Part(outer, 0, 2), {OutChannel(outer)}, Part(outer, group_ + 2, spatial_ + 1)});
    };
    EmitProduct(n_, c_, product, sums, true);
    AddParts(sums, parts, weight);
  }

 private:
  void Pad() {
    const Window& w = c_.window;
    Ints reach;
    for (size_t d = 0; d < spatial_; ++d) {
      const int64_t beyond = (w.kernel[d] - 1) * w.dilation[d] + 1 - w.stride[d];
      reach.push_back(ints_.Add(ints_.Mul(out_.sizes[d + 2], w.stride[d]), beyond));
    }
    const std::vector<int64_t> none(spatial_, 0);
    // One batch element's places lie side by side: products take them where they are.
    const bool is_flat = out_.sizes[0].is_const(1) && out_.dtype == c_.compute;
    if (!is_flat) padded_out_ = PadPlaces(n_, c_, out_, true, none, Spatial(out_.sizes));
    if (!is_flat || !ReadsPlacesAsTheyAre()) {
      padded_image_ = PadPlaces(n_, c_, image_, is_wide_, w.padding, reach);
    }
  }

  bool StoresFewWeights() const {
    const IntExpr places = ints_.Mul(out_.sizes[0], ints_.Product(Spatial(out_.sizes)));
    return c_.window.Volume() == 1 ||
           ints_.EvaluateAtHints(places) > kPlacesOfWeight * c_.out_channels;
  }

  // Whether place q of the result is made of place q of the image alone.
  bool ReadsPlacesAsTheyAre() const {
    bool is_same = c_.window.Volume() == 1;
    for (size_t d = 0; d < spatial_; ++d) {
      is_same &= c_.window.stride[d] == 1 && c_.window.padding[d] == 0 &&
                 image_.sizes[d + 2] == out_.sizes[d + 2];
    }
    return is_same;
  }

  // A weight for each part moves no more memory than the operands do.
  bool IsWorthSplitting() const {
    const int64_t weights = c_.groups * c_.out_channels * c_.in_channels * c_.window.Volume();
    const int64_t operands =
        ints_.EvaluateAtHints(ints_.Add(ints_.Product(out_.sizes), ints_.Product(image_.sizes)));
    return split_->parts[0] * split_->parts[1] <= operands / std::max<int64_t>(weights, 1);
  }

  Ints InOrder() const {
    const Ints kernel = Consts(ints_, c_.window.kernel), channels{ints_.Const(c_.in_channels)};
    return is_wide_ ? Join({kernel, channels}) : Join({channels, kernel});
  }
  size_t AtChannel() const { return group_ + 2 + (is_wide_ ? spatial_ : 0); }
  Ints Offsets(const Ints& outer) const {
    return Part(outer, group_ + (is_wide_ ? 2 : 3), spatial_);
  }
  IntExpr OutChannel(const Ints& outer) const {
    return ints_.Add(ints_.Mul(outer[group_], c_.out_channels), outer[group_ + 1]);
  }

  // Batch element and place of the result.
  Ints PlaceOf(const Ints& outer, const Ints& inner) const {
    Ints place = inner;
    for (size_t i = 0; split_ && i < 2; ++i) {
      place[i] = ints_.Add(ints_.Mul(outer[i], split_->size[i]), inner[i]);
    }
    return place;
  }

  Scalar LoadOut(KernelBuilder& k, const Ints& outer, const Ints& at) const {
    const Ints place = Part(at, 1, spatial_);
    if (padded_out_) return LoadPadded(k, *padded_out_, at[0], OutChannel(outer), place);
    return k.Load(out_, Join({{at[0], OutChannel(outer)}, place}));
  }

  Scalar LoadImage(KernelBuilder& k, const Ints& outer, const Ints& at) const {
    const IntExpr channel = ints_.Add(ints_.Mul(outer[group_], c_.in_channels), outer[AtChannel()]);
    const Ints offsets = Offsets(outer);
    Ints place;
    for (size_t d = 0; d < spatial_; ++d) {
      place.push_back(WindowIndex(ints_, c_.window, d, at[d + 1], offsets[d]));
    }
    if (padded_image_) return LoadPadded(k, *padded_image_, at[0], channel, place);
    const Ints source = Join({{at[0], channel}, place});
    return k.LoadMasked(image_, source, InsideMask(k, image_.sizes, source), 0);
  }

  void AddParts(const View& sums, const Ints& parts, const View& weight) const {
    KernelBuilder k = n_.NewKernel();
    const Ints outer = k.Outer(weight.sizes);
    const Ints part = k.StartPhase(parts);
    const Ints offsets = Spatial(outer);
    const Ints rest = is_wide_ ? Join({offsets, {outer[1]}}) : Join({{outer[1]}, offsets});
    const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Load(sums, Join({part, {outer[0]}, rest})));
    k.StartPhase();
    k.Store(weight, outer, sum);
    k.Finish();
  }

  NodeContext& n_;
  ir::IntContext& ints_;
  const Convolution& c_;
  const View& out_;
  const View& image_;
  const size_t spatial_;
  const bool is_blocked_, is_wide_;
  std::optional<Padded> padded_out_, padded_image_;  // nothing where they are read in place
  std::optional<Parts> split_;
  size_t group_ = 0;  // the loop over groups: those over parts come before it
};

}  // namespace

void EmitWeight(NodeContext& n, const Convolution& c, const View& out, const View& image,
                const View& weight) {
  WeightEmitter(n, c, out, image).Emit(weight);
}

}  // namespace kiln::lowering
