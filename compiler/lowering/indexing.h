// Index tensors, as reads and writes at positions that they give have them.
#pragma once

#include <optional>
#include <vector>

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// Declines an index that is no i32 or i64.
absl::Status CheckIndex(NodeContext& n, const View& index);

// The index tensors of index.Tensor and index_put.
struct AdvancedIndex {
  std::vector<std::optional<View>> indices;  // by dimension of self
  size_t count = 0;                          // of those that are tensors
  size_t first = 0;  // where their dimensions stand in the result of index.Tensor
  size_t rank = 0;   // of all together, broadcast
};
// From argument 1; declines masks.
absl::StatusOr<AdvancedIndex> ReadAdvancedIndex(NodeContext& n, const View& self);

// An index into a dimension of `size` elements, broadcast; negative ones count from the end.
Scalar LoadWrapped(KernelBuilder& b, const View& index, const Ints& at, ir::IntExpr size);

}  // namespace kiln::lowering
