#include "compiler/schedule/ptx/attention.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/multiples.h"
#include "compiler/schedule/ptx/cost.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;

namespace {

constexpr int64_t kLine = 64, kLineBytes = 128;  // of a box along a head
// So many keys fill a pipeline for long: what a tile costs at its ends counts no more.
constexpr int64_t kLong = 1536;

DType DTypeOf(const ir::Module& module, const AttentionOperand& operand) {
  return module.buffers[operand.buffer].dtype;
}

// Of a tile without mask and causality, microseconds: `start`, and `step` for each of its steps.
// Fitted to measurements on two H100 (132 multiprocessors) of 128 to 8192 keys.
struct TileCost {
  double start, step;
};
constexpr TileCost kOfWidth64 = {1.5, 1.20}, kOfWidth64InThree = {2.2, 1.48};
constexpr TileCost kOfWidth128 = {1.5, 1.67};

TileCost CostOf(const AttentionTile& tile) {
  if (tile.width != 64) return kOfWidth128;
  return tile.groups == 3 ? kOfWidth64InThree : kOfWidth64;
}

// REQUIRES: of 64 or 128 elements, without mask and causality.
double Microseconds(const IntContext& ints, const Attention& attention, const AttentionTile& tile,
                    int units) {
  constexpr double kLaunch = 2;
  const TileCost cost = CostOf(tile);
  const auto waves = static_cast<double>(CeilDiv(TilesOf(ints, attention, tile.Queries()), units));
  const auto steps = static_cast<double>(CeilDiv(KeysOf(ints, attention), tile.keys));
  return kLaunch + waves * (cost.start + steps * cost.step);
}

// cuDNN's, by the same measurements.
double LibraryMicroseconds(const IntContext& ints, const Attention& attention) {
  constexpr double kStart = 8, kOfWidth64 = 480e6, kOfWidth128 = 650e6;  // a microsecond
  const double pairs = static_cast<double>(ints.EvaluateAtHints(attention.batches)) *
                       static_cast<double>(ints.EvaluateAtHints(attention.heads)) *
                       static_cast<double>(ints.EvaluateAtHints(attention.queries)) *
                       static_cast<double>(KeysOf(ints, attention));
  const double operations = 4 * pairs * static_cast<double>(attention.width);
  return kStart + operations / (attention.width == 64 ? kOfWidth64 : kOfWidth128);
}

// The fastest of 20 shapes on an H100, with up to 8192 keys.
AttentionTile ChooseTile(const ir::Module& module, const Attention& attention, int units) {
  AttentionTile tile{FormOf(module, attention)};
  const IntContext& ints = *module.ints;
  const int64_t keys = KeysOf(ints, attention);
  const bool has_mask = tile.mask != 0;  // which takes registers
  switch (attention.width) {
    case 64:
      if (!has_mask) {
        AttentionTile of_three = tile;
        of_three.groups = 3;
        const bool is_faster = attention.is_causal
                                   ? keys >= kLong
                                   : Microseconds(ints, attention, of_three, units) <
                                         Microseconds(ints, attention, tile, units);
        if (is_faster) tile = of_three;
      }
      break;
    case 96:
      if (attention.is_causal) {
        tile.groups = 3;
        tile.keys = 96;
      }
      break;
    case 256:
      tile.keys = has_mask ? 32 : 64;
      tile.places = 1;
      tile.is_persistent = false;
      break;
    default:
      tile.turns = !attention.is_causal;
      if (has_mask) tile.keys = tile.mask == 1 ? 80 : 96;
  }
  // A tile of one step needs its queries while the one before it still has its place, and the one
  // before that leaves.
  AttentionTile of_three_places = tile;
  of_three_places.places = 3;
  if (tile.is_persistent && keys <= tile.keys && of_three_places.SharedBytes() <= kMostShared) {
    return of_three_places;
  }
  return tile;
}

std::string Describe(const AttentionTile& tile) {
  return absl::StrCat("attention on the tensor cores, in tiles of ", tile.Queries(),
                      " queries by steps of ", tile.keys, " keys",
                      tile.turns ? ", warpgroups in turn" : "",
                      tile.is_persistent ? ", blocks that take several" : "");
}

}  // namespace

int64_t AttentionTile::SharedBytes() const {
  constexpr int64_t kBarriers = 1024, kAlignment = 1024;
  const int64_t row = CeilDiv(width, kLine) * kLineBytes;
  return row * (places * Queries() + int64_t{2} * stages * keys) + kBarriers + kAlignment;
}

std::vector<int> AttentionTile::Constants() const {
  std::vector<int> constants = {width, groups, keys, stages, turns, places, is_persistent};
  AddConstants(constants);
  return constants;
}

AttentionTile AttentionTile::FromConstants(const std::vector<int>& c) {
  return {AttentionForm::FromConstants(c), c[1], c[2], c[3], c[4] != 0, c[5], c[6] != 0};
}

bool IsOfTensorCores(const ir::Module& module, const Attention& attention,
                     const DeviceInfo& device) {
  return device.arch == "sm_90a" && IsOfHalves(module, attention);
}

bool IsFasterThanLibraries(const ir::Module& module, const Attention& attention,
                           const DeviceInfo& device) {
  const IntContext& ints = *module.ints;
  // Those of one tile are attention of few queries, and such a tile does little with its keys.
  constexpr int64_t kFewestQueries = 64;
  if (ints.EvaluateAtHints(attention.queries) < kFewestQueries) return false;
  // A library makes one of 16 bits of a mask of bools, in a kernel of its own. Of others, ours
  // reads rows of an odd number of elements one by one.
  if (attention.mask) {
    if (DTypeOf(module, *attention.mask) == DType::kBool) return true;
    if (attention.width != 64 && attention.width != 128) return false;
    if (attention.mask->by_row.is_const(0)) return true;
    constexpr int64_t kFewKeys = 512;
    return Multiples().Is(*module.ints, attention.keys, 2) &&
           (attention.width == 128 || KeysOf(ints, attention) <= kFewKeys);
  }
  if (attention.is_causal || attention.width == 96) return true;
  if (attention.width == 256) return false;  // blocks have one tile, which nothing overlaps
  const int units = ComputeUnits(device);
  return Microseconds(ints, attention, ChooseTile(module, attention, units), units) <
         LibraryMicroseconds(ints, attention);
}

Tree ScheduleAttention(ir::Module& module, const ir::Repeat& repeat, const Attention& attention,
                       const DeviceInfo& device) {
  constexpr int kTeam = 256;
  const int units = ComputeUnits(device);
  const AttentionTile tile = ChooseTile(module, attention, units);
  Tree tree = MakeAttentionTree(module, repeat, attention, MicroKind::kAttendTile, tile.Constants(),
                                tile.Queries(), kTeam);
  tree.reasons.push_back(Describe(tile));
  tree.reasons.push_back(absl::StrCat(TilesOf(*module.ints, attention, tile.Queries()),
                                      " tiles for ", units, " multiprocessors"));
  return tree;
}

}  // namespace kiln::schedule::ptx
