#include "compiler/schedule/ptx/attention.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

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

// At the symbols' hints, of one head.
int64_t KeysOf(const IntContext& ints, const Attention& attention) {
  const int64_t keys = ints.EvaluateAtHints(attention.keys);
  return attention.is_causal ? std::min(keys, ints.EvaluateAtHints(attention.queries)) : keys;
}

int64_t TilesOf(const IntContext& ints, const Attention& attention, int queries) {
  return ints.EvaluateAtHints(attention.batches) * ints.EvaluateAtHints(attention.heads) *
         CeilDiv(ints.EvaluateAtHints(attention.queries), queries);
}

int MaskOf(const ir::Module& module, const Attention& attention) {
  if (!attention.mask) return 0;
  return DTypeOf(module, *attention.mask) == DType::kBool ? 1 : 2;
}

// Of a tile without mask and causality, microseconds: `start`, and `step` for each of its steps.
// Fitted to measurements on two H100 (132 multiprocessors) of 128 to 8192 keys.
struct TileCost {
  double start, step;
};
constexpr TileCost kOfWidth64 = {1.6, 1.20}, kOfWidth64InThree = {2.6, 1.43};
constexpr TileCost kOfWidth128 = {2.9, 1.47};

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
  AttentionTile tile;
  const IntContext& ints = *module.ints;
  const int64_t keys = KeysOf(ints, attention);
  tile.width = static_cast<int>(attention.width);
  tile.is_causal = attention.is_causal;
  tile.mask = MaskOf(module, attention);
  tile.has_log_sums = attention.log_sums.has_value();
  tile.scale = static_cast<float>(attention.scale);
  // Tiles with many keys come first there, and leave blocks to others as they end.
  tile.is_persistent = !attention.is_causal || keys < (attention.width == 64 ? 1024 : kLong);
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
      tile.in_place = true;
      break;
    default:
      tile.turns = !attention.is_causal;
      if (has_mask) tile.keys = tile.mask == 1 ? 80 : 96;
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

bool HasLines(IntContext& ints, const AttentionOperand& operand, IntExpr batches, IntExpr heads,
              IntExpr rows) {
  constexpr int64_t kUnit = 8;  // elements of 16 bytes
  const Multiples multiples;
  const auto is_stride = [&](IntExpr stride, IntExpr extent) {
    return extent.is_const(1) || (stride.range().min > 0 && multiples.Is(ints, stride, kUnit));
  };
  return operand.by_lane.is_const(1) && multiples.Is(ints, operand.first, kUnit) &&
         is_stride(operand.by_batch, batches) && is_stride(operand.by_head, heads) &&
         is_stride(operand.by_row, rows);
}

bool HasIntSizes(IntContext& ints, const Attention& attention) {
  constexpr int64_t kMost = int64_t{1} << 31;
  IntExpr tiles = ints.Const(1);
  for (const IntExpr size :
       {attention.batches, attention.heads, attention.queries, attention.keys}) {
    if (size.range().min < 1 || size.range().max >= kMost) return false;
    if (size != attention.keys) tiles = ints.Mul(tiles, size);
  }
  return tiles.range().max < kMost || !tiles.is_const();
}

std::pair<int, int> HalvesOf(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<int>(bits >> 16), static_cast<int>(bits & 0xffff)};
}

int64_t AttentionTile::SharedBytes() const {
  constexpr int64_t kBarriers = 1024, kAlignment = 1024;
  const int64_t row = CeilDiv(width, kLine) * kLineBytes;
  return row * ((in_place ? 1 : 2) * Queries() + int64_t{2} * stages * keys) + kBarriers +
         kAlignment;
}

std::vector<int> AttentionTile::Constants() const {
  const auto [high, low] = HalvesOf(scale);
  return {width,         groups,    keys, stages,       turns, in_place,
          is_persistent, is_causal, mask, has_log_sums, high,  low};
}

AttentionTile AttentionTile::FromConstants(const std::vector<int>& c) {
  return {c[0],
          c[1],
          c[2],
          c[3],
          c[4] != 0,
          c[5] != 0,
          c[6] != 0,
          c[7] != 0,
          c[8],
          c[9] != 0,
          ScaleOf(c, kAttendScale)};
}

bool IsOfTensorCores(const ir::Module& module, const Attention& attention,
                     const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  if (device.arch != "sm_90a" || attention.value_width != attention.width) return false;
  constexpr int64_t kWidths[] = {64, 96, 128, 256};
  if (std::find(std::begin(kWidths), std::end(kWidths), attention.width) == std::end(kWidths)) {
    return false;
  }
  const DType dtype = DTypeOf(module, attention.query);
  if (dtype != DType::kBF16 && dtype != DType::kF16) return false;
  if (!HasIntSizes(ints, attention)) return false;
  const IntExpr key_heads = ints.FloorDiv(attention.heads, attention.of_key);
  for (const auto& [operand, heads, rows] :
       {std::tuple(&attention.query, attention.heads, attention.queries),
        std::tuple(&attention.key, key_heads, attention.keys),
        std::tuple(&attention.value, key_heads, attention.keys),
        std::tuple(&attention.result, attention.heads, attention.queries)}) {
    if (DTypeOf(module, *operand) != dtype ||
        !HasLines(ints, *operand, attention.batches, heads, rows)) {
      return false;
    }
  }
  // None is causal and has a mask: torch refuses it.
  if (attention.mask) {
    const DType of_mask = DTypeOf(module, *attention.mask);
    if (of_mask != DType::kBool && of_mask != DType::kF32 && of_mask != dtype) return false;
    if (attention.is_causal || !attention.mask->by_lane.is_const(1)) return false;
  }
  // Greatest scores are found before they are scaled.
  return attention.scale > 0;
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
  if (attention.is_causal || (attention.width != 64 && attention.width != 128)) return true;
  const int units = ComputeUnits(device);
  return Microseconds(ints, attention, ChooseTile(module, attention, units), units) <
         LibraryMicroseconds(ints, attention);
}

Tree ScheduleAttention(ir::Module& module, const ir::Repeat& repeat, const Attention& attention,
                       const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  const int units = ComputeUnits(device);
  const AttentionTile tile = ChooseTile(module, attention, units);
  Tree tree;
  tree.name = repeat.name;
  tree.origins = repeat.kernels[0].origins;
  constexpr int kTeam = 256;
  tree.team = kTeam;
  tree.reasons.push_back(Describe(tile));
  tree.reasons.push_back(absl::StrCat(TilesOf(ints, attention, tile.Queries()), " tiles for ",
                                      units, " multiprocessors"));

  Block* at = &tree.body;
  const IntExpr zero = ints.Const(0);
  const auto add_tasks = [&](IntExpr extent, int64_t step) {
    const IntExpr var = ints.NewVar(extent);
    at->push_back({For{var, zero, extent, ints.Const(step), Binding::kTask, 1, {}}});
    at = &std::get<For>(at->back().value).body;
    return var;
  };
  const IntExpr batch = add_tasks(attention.batches, 1);
  const IntExpr key_head = add_tasks(ints.FloorDiv(attention.heads, attention.of_key), 1);
  const IntExpr of_key = add_tasks(ints.Const(attention.of_key), 1);
  const IntExpr row = add_tasks(attention.queries, tile.Queries());
  const IntExpr head = ints.Add(ints.Mul(key_head, attention.of_key), of_key);
  const auto window = [&](const AttentionOperand& operand, IntExpr of_head, IntExpr of_row) {
    IntExpr index = operand.first;
    for (const auto& [var, by] : {std::pair(batch, operand.by_batch),
                                  {of_head, operand.by_head},
                                  {of_row, operand.by_row}}) {
      index = ints.Add(index, ints.Mul(var, by));
    }
    return Window{operand.buffer, -1, index};
  };
  const IntExpr rows = ints.Min(ints.Sub(attention.queries, row), ints.Const(tile.Queries()));
  Micro micro{MicroKind::kAttendTile,
              tile.Constants(),
              {window(attention.result, head, row), window(attention.query, head, row),
               window(attention.key, key_head, zero), window(attention.value, key_head, zero)},
              {rows, row, attention.keys, attention.result.by_row, attention.query.by_row,
               attention.key.by_row, attention.value.by_row}};
  if (attention.mask) micro.windows.push_back(window(*attention.mask, head, row));
  if (attention.log_sums) micro.windows.push_back(window(*attention.log_sums, head, row));
  micro.sizes.push_back(attention.mask ? attention.mask->by_row : zero);
  micro.sizes.push_back(attention.log_sums ? attention.log_sums->by_row : zero);
  at->push_back({std::move(micro)});
  return tree;
}

}  // namespace kiln::schedule::ptx
