#include "compiler/schedule/ptx/attention_form.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <variant>

#include "compiler/schedule/micro.h"
#include "compiler/schedule/multiples.h"
#include "compiler/schedule/ptx/cost.h"

namespace kiln::schedule::ptx {

using ir::IntContext;
using ir::IntExpr;

namespace {

DType DTypeOf(const ir::Module& module, const AttentionOperand& operand) {
  return module.buffers[operand.buffer].dtype;
}

}  // namespace

void AttentionForm::AddConstants(std::vector<int>& constants) const {
  const auto [high, low] = HalvesOf(scale);
  for (const int value : {is_causal ? 1 : 0, mask, has_log_sums ? 1 : 0, high, low}) {
    constants.push_back(value);
  }
}

AttentionForm AttentionForm::FromConstants(const std::vector<int>& c) {
  return {c[0], c[kAttendCausal] != 0, c[kAttendMask], c[kAttendSums] != 0,
          ScaleOf(c, kAttendScale)};
}

AttentionForm FormOf(const ir::Module& module, const Attention& attention) {
  AttentionForm form;
  form.width = static_cast<int>(attention.width);
  form.is_causal = attention.is_causal;
  if (attention.mask) form.mask = DTypeOf(module, *attention.mask) == DType::kBool ? 1 : 2;
  form.has_log_sums = attention.log_sums.has_value();
  form.scale = static_cast<float>(attention.scale);
  return form;
}

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

bool IsOfHalves(const ir::Module& module, const Attention& attention) {
  IntContext& ints = *module.ints;
  constexpr int64_t kWidths[] = {64, 96, 128, 256};
  if (attention.value_width != attention.width ||
      std::find(std::begin(kWidths), std::end(kWidths), attention.width) == std::end(kWidths)) {
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

int64_t KeysOf(const IntContext& ints, const Attention& attention) {
  const int64_t keys = ints.EvaluateAtHints(attention.keys);
  return attention.is_causal ? std::min(keys, ints.EvaluateAtHints(attention.queries)) : keys;
}

int64_t TilesOf(const IntContext& ints, const Attention& attention, int queries) {
  return ints.EvaluateAtHints(attention.batches) * ints.EvaluateAtHints(attention.heads) *
         CeilDiv(ints.EvaluateAtHints(attention.queries), queries);
}

IntExpr AddTasks(IntContext& ints, IntExpr extent, int64_t step, Block*& at) {
  const IntExpr var = ints.NewVar(extent);
  at->push_back({For{var, ints.Const(0), extent, ints.Const(step), Binding::kTask, 1, {}}});
  at = &std::get<For>(at->back().value).body;
  return var;
}

Window WindowAt(IntContext& ints, const AttentionOperand& operand, IntExpr batch, IntExpr head,
                IntExpr row) {
  IntExpr index = operand.first;
  for (const auto& [var, by] :
       {std::pair(batch, operand.by_batch), {head, operand.by_head}, {row, operand.by_row}}) {
    index = ints.Add(index, ints.Mul(var, by));
  }
  return {operand.buffer, -1, index};
}

Tree MakeAttentionTree(ir::Module& module, const ir::Repeat& repeat, const Attention& attention,
                       MicroKind kind, std::vector<int> constants, int queries, int team) {
  IntContext& ints = *module.ints;
  Tree tree;
  tree.name = repeat.name;
  tree.origins = repeat.kernels[0].origins;
  tree.team = team;

  Block* at = &tree.body;
  const IntExpr zero = ints.Const(0);
  const IntExpr key_heads = ints.FloorDiv(attention.heads, attention.of_key);
  const IntExpr batch = AddTasks(ints, attention.batches, 1, at);
  const IntExpr key_head = AddTasks(ints, key_heads, 1, at);
  const IntExpr of_key = AddTasks(ints, ints.Const(attention.of_key), 1, at);
  const IntExpr row = AddTasks(ints, attention.queries, queries, at);
  const IntExpr head = ints.Add(ints.Mul(key_head, attention.of_key), of_key);
  const auto window = [&](const AttentionOperand& operand, IntExpr of_head, IntExpr of_row) {
    return WindowAt(ints, operand, batch, of_head, of_row);
  };
  const IntExpr rows = ints.Min(ints.Sub(attention.queries, row), ints.Const(queries));
  Micro micro{kind,
              std::move(constants),
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
