// How long indices may grow where one puts them into others: a reshape of symbolic sizes into the
// next one's quotients and remainders, fusion into what reads the result.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "compiler/ir/int_expr.h"

namespace kiln::ir {

// Beyond this many nodes a copy, or a buffer between two kernels, costs less.
inline constexpr uint64_t kMostIndexNodes = 512;

// Nodes of one access's indices, written out as trees.
inline uint64_t IndexNodes(absl::Span<const IntExpr> indices) {
  uint64_t nodes = 0;
  for (IntExpr index : indices) nodes += TreeSize(index);
  return nodes;
}

}  // namespace kiln::ir
