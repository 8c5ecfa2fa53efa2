// What the products of a convolution's gradients are made of. Private to the convolution_*.cc
// files.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "compiler/lowering/convolution.h"

namespace kiln::lowering {

Ints Join(std::initializer_list<Ints> parts);
Ints Part(const Ints& all, size_t begin, size_t count);
// Without batch and channel.
Ints Spatial(const Ints& sizes);
Ints Consts(ir::IntContext& ints, const std::vector<int64_t>& values);

// With so many channels, panels are made of channels; with fewer, of places or the kernel's
// elements.
constexpr int64_t kChannelsOfPanel = 16;

// A copy of a tensor [n, channel, place..] with `low` zeros before each spatial dimension (elements
// cut off, where negative) and so many after it that `sizes` are filled: contractions read it in
// place, without masks, in the type they compute in. Its channels are last where `is_last`.
struct Padded {
  View view;
  bool is_last = false;
  std::vector<int64_t> low;
};
Padded PadPlaces(NodeContext& n, const Convolution& c, const View& x, bool is_last,
                 const std::vector<int64_t>& low, const Ints& sizes);

// Element (n, channel, place..) of what was padded.
Scalar LoadPadded(KernelBuilder& k, const Padded& padded, ir::IntExpr batch, ir::IntExpr channel,
                  Ints place);

// One kernel: the sum over `inner` of a * b, stored at `at_out`.
struct Product {
  Ints outer, inner;
  std::function<Scalar(KernelBuilder&, const Ints& outer, const Ints& inner)> a, b;
  std::function<Ints(const Ints& outer)> at_out;
};
void EmitProduct(NodeContext& n, const Convolution& c, const Product& product, const View& out,
                 bool is_blocked);

}  // namespace kiln::lowering
