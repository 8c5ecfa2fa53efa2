// Which kernels together are attention: those that compiler/lowering/attention.cc makes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule::ptx {

// Element (batch, head, row, lane) lies at first + the sum of each times its stride, in elements;
// of what heads share, `head` is one of the fewer.
struct AttentionOperand {
  ir::BufferId buffer = -1;
  ir::IntExpr first, by_batch, by_head, by_row, by_lane;
};

// result = softmax(scale * query key^T + mask) value, for each batch and head; a row whose keys are
// all forbidden is 0.
struct Attention {
  ir::IntExpr batches, heads, queries, keys;
  int64_t width = 0, value_width = 0;
  int64_t of_key = 1;  // neighbouring heads that share keys and values
  double scale = 0;
  bool is_causal = false;  // row i sees keys up to i
  AttentionOperand query, key, value, result;
  std::optional<AttentionOperand> mask;      // its lanes are keys; bool: keeps, else is added
  std::optional<AttentionOperand> log_sums;  // no lanes: the logarithm of a row's exponentials' sum
};

// Nothing where they are something else, or an operand does not lie at strides.
std::optional<Attention> FindAttention(ir::Module& module,
                                       const std::vector<const ir::Kernel*>& kernels);

}  // namespace kiln::schedule::ptx
