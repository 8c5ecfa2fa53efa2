#include "compiler/schedule/ptx/gradients.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/micro.h"
#include "compiler/schedule/ptx/attention_form.h"
#include "compiler/schedule/ptx/team_plan.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;
using Of = OfGradients;

namespace {

// The fastest of some, by measurements on an H100: with longer heads fewer queries, as registers
// hold the sums of both gradients.
GradientsTile ChooseTile(const AttentionGradients& gradients) {
  const Attention& attention = gradients.attention;
  GradientsTile tile;
  tile.width = static_cast<int>(attention.width);
  tile.queries = attention.width == 64 ? 128 : 64;
  tile.of_key = static_cast<int>(attention.of_key);
  tile.is_causal = attention.is_causal;
  tile.scale = static_cast<float>(attention.scale);
  return tile;
}

IntExpr KeyHeads(IntContext& ints, const Attention& attention) {
  return ints.FloorDiv(attention.heads, attention.of_key);
}

}  // namespace

int64_t GradientsTile::SharedBytes() const {
  constexpr int64_t kLine = 128, kLineElements = 64, kBarriers = 512, kAlignment = 1024;
  const int64_t boxes = width / kLineElements, row = boxes * kLine;
  const int64_t of_keys = 2 * row * kKeys, of_step = 2 * row * queries;
  const int64_t slopes = int64_t{2} * kGroups * queries * kLine;
  const int64_t sums = kGroups * 2 * 64 * kLine, of_rows = int64_t{2} * stages * queries * 4;
  return of_keys + stages * of_step + slopes + sums + of_rows + kBarriers + kAlignment;
}

std::vector<int> GradientsTile::Constants() const {
  const auto [high, low] = HalvesOf(scale);
  return {width, queries, stages, of_key, is_causal, high, low};
}

GradientsTile GradientsTile::FromConstants(const std::vector<int>& c) {
  return {c[Of::kWidth], c[Of::kStep],        c[Of::kStages],
          c[Of::kOfKey], c[Of::kCausal] != 0, ScaleOf(c, Of::kScale)};
}

bool IsOfTensorCores(const ir::Module& module, const AttentionGradients& gradients,
                     const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  const Attention& attention = gradients.attention;
  if (device.arch != "sm_90a" || device.deterministic) return false;
  if (attention.value_width != attention.width ||
      (attention.width != 64 && attention.width != 128) || !HasIntSizes(ints, attention)) {
    return false;
  }
  const auto dtype_of = [&](const AttentionOperand& operand) {
    return module.buffers[operand.buffer].dtype;
  };
  const DType dtype = dtype_of(attention.query);
  if (dtype != DType::kBF16 && dtype != DType::kF16) return false;
  for (const AttentionOperand* sums :
       {&*attention.log_sums, &gradients.dots, &gradients.of_queries}) {
    if (dtype_of(*sums) != DType::kF32) return false;
  }
  const IntExpr key_heads = KeyHeads(ints, attention);
  for (const auto& [operand, heads, rows] :
       {std::tuple(&attention.query, attention.heads, attention.queries),
        std::tuple(&gradients.grad, attention.heads, attention.queries),
        std::tuple(&attention.key, key_heads, attention.keys),
        std::tuple(&attention.value, key_heads, attention.keys),
        std::tuple(&gradients.of_keys, key_heads, attention.keys),
        std::tuple(&gradients.of_values, key_heads, attention.keys)}) {
    if (dtype_of(*operand) != dtype || !HasLines(ints, *operand, attention.batches, heads, rows)) {
      return false;
    }
  }
  return HasLines(ints, gradients.of_queries, attention.batches, attention.heads,
                  attention.queries);
}

bool IsFasterThanLibraries(const ir::Module& module, const AttentionGradients& gradients) {
  const IntContext& ints = *module.ints;
  // On an H100 none of 30 shapes of 128 to 8192 queries and 8 to 384 heads was slower than cuDNN's
  // or flash attention's: 1.01 to 1.4 times as fast with the forward pass, least so where all tiles
  // are full and many. Of less than a tile of either most of what the tensor cores do is for
  // nothing.
  constexpr int64_t kFewest = 64;
  return ints.EvaluateAtHints(gradients.attention.queries) >= kFewest &&
         ints.EvaluateAtHints(gradients.attention.keys) >= kFewest;
}

Tree ScheduleGradients(ir::Module& module, const ir::Repeat& repeat,
                       const AttentionGradients& gradients, const DeviceInfo& device) {
  IntContext& ints = *module.ints;
  const Attention& attention = gradients.attention;
  const GradientsTile tile = ChooseTile(gradients);
  const IntExpr key_heads = KeyHeads(ints, attention);
  const IntExpr tiles = ints.Mul(ints.Mul(attention.batches, key_heads),
                                 ints.CeilDiv(attention.keys, ints.Const(tile.kKeys)));
  Tree tree;
  tree.name = repeat.name;
  tree.origins = repeat.kernels[0].origins;
  constexpr int kTeam = 256;
  tree.team = kTeam;
  tree.zeroed = {gradients.of_queries.buffer};
  tree.reasons.push_back(absl::StrCat("gradients of attention on the tensor cores, in tiles of ",
                                      tile.kKeys, " keys by steps of ", tile.queries, " queries"));
  tree.reasons.push_back(absl::StrCat(ints.EvaluateAtHints(tiles), " tiles for ",
                                      ComputeUnits(device), " multiprocessors"));
  tree.reasons.push_back(
      "tiles add to the queries' gradient as they come; a deterministic graph's are a library's");

  Block* at = &tree.body;
  const IntExpr zero = ints.Const(0);
  const IntExpr batch = AddTasks(ints, attention.batches, 1, at);
  const IntExpr key_head = AddTasks(ints, key_heads, 1, at);
  const IntExpr row = AddTasks(ints, attention.keys, tile.kKeys, at);
  const IntExpr head = ints.Mul(key_head, attention.of_key);

  const AttentionOperand* const operands[] = {
      &gradients.of_keys, &gradients.of_values, &gradients.of_queries,
      &attention.query,   &attention.key,       &attention.value,
      &gradients.grad,    &*attention.log_sums, &gradients.dots};
  Micro micro{
      MicroKind::kAttendGradients,
      tile.Constants(),
      {},
      {ints.Min(ints.Sub(attention.keys, row), ints.Const(tile.kKeys)), row, attention.queries}};
  for (size_t window = 0; window < std::size(operands); ++window) {
    const AttentionOperand& operand = *operands[window];
    const bool has_heads = Of::HasHeads(window);
    micro.windows.push_back(
        WindowAt(ints, operand, batch, has_heads ? head : key_head, has_heads ? zero : row));
    micro.sizes.push_back(operand.by_row);
  }
  for (size_t window = 0; window < std::size(operands); ++window) {
    if (Of::HasHeads(window)) micro.sizes.push_back(operands[window]->by_head);
  }
  at->push_back({std::move(micro)});
  return tree;
}

}  // namespace kiln::schedule::ptx
