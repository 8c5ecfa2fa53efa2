// Which convolutions are computed by Winograd's method, and in which tiles.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

// Convolutions of 3 x 3 taps that step over one place, in tiles of 2 x 2 places: each tile is 16
// products of transformed image and weights, one for each of 16 planes, in place of 36 (Lavin and
// Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). A place's sum depends on the 9
// elements that it is made of and on no others of its tile; rounding errors are of the size that
// they have in sums of those 9 taps' absolute values.
inline constexpr int kWinogradPlanes = 16, kWinogradTaps = 9;
inline constexpr int kWinogradVectors = 2;  // of a panel

// One dimension of the image: zeros lie before element 0 and behind the last.
struct WinogradAxis {
  int64_t places = 0;  // of the result
  int64_t before = 0;  // zeros before the first place's first tap
  int64_t size = 0;    // elements that are there
  int64_t stride = 0;  // between those
  int64_t tiles() const { return (places + 1) / 2; }
};

struct WinogradPlan {
  // Rows are the two loops of a place, a batch is an image, k is (channel, tap, tap), tile_rows are
  // tiles of the image.
  ContractionPlan contraction;
  const Step* image = nullptr;
  ir::IntExpr origin;  // the index of element 0 of both dimensions, in channel 0
  WinogradAxis height, width;
  int64_t channels = 0, channel_stride = 0;
  int64_t block_rows = 1;  // of tiles, as wide as the image, that are transformed at a time

  int64_t block_tiles() const { return block_rows * width.tiles(); }
};

// How a contraction is to be computed so, of which `plan` is the usual way; nothing where it is no
// such convolution in f32, where sizes are not known or where it would not be faster.
std::optional<WinogradPlan> PlanWinograd(ir::Module& module, const Nest& nest,
                                         const ContractionPlan& plan, const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
