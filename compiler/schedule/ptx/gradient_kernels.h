// Which kernels together are the gradients of attention but for what comes before and after them:
// those that compiler/lowering/attention.cc has run together.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/ptx/attention_kernels.h"

namespace kiln::schedule::ptx {

// With weights = exp(scale * query key^T - log_sums) and slopes = weights * (grad value^T - dots),
// of_values is weights^T grad, of_keys is scale * slopes^T query, both summed over the heads that
// share keys, and of_queries, of float32, is slopes key. There is no mask.
struct AttentionGradients {
  Attention attention;  // without a result
  AttentionOperand grad, dots, of_queries, of_keys, of_values;
};

// Nothing where they are something else, or an operand does not lie at strides.
std::optional<AttentionGradients> FindAttentionGradients(
    ir::Module& module, const std::vector<const ir::Kernel*>& kernels);

}  // namespace kiln::schedule::ptx
