// Import: the only reader of kiln.v1.Graph.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/graph/graph.h"

namespace kiln::v1 {
class Graph;
}

namespace kiln::graph {

// Limits on what a client may send; each has its own message.
inline constexpr int kMaxNodes = 200'000;
inline constexpr int kMaxRank = 32;
inline constexpr int kMaxListItems = 100'000;              // of one list
inline constexpr int kMaxNesting = 64;                     // of lists and of size expressions
inline constexpr int64_t kMaxElements = int64_t{1} << 40;  // of one tensor

// The checks of Import that need no look into the lists, so that an oversized graph is refused at
// once.
absl::Status CheckCounts(const v1::Graph& proto);

// Converts and checks `proto`: format version, value numbers (known, and smaller than the node's
// own: so no cycles), dtypes, symbols and their ranges, sizes that are never negative and whose
// product and reach fit, strides, as many strides as sizes, constants' bytes, outputs and
// mutations. Symbols and sizes are made in `ints`.
//
// INVALID_ARGUMENT with a detail that names the node and what was expected. Time and memory are
// linear in the size of `proto`.
absl::StatusOr<Graph> Import(const v1::Graph& proto, ir::IntContext& ints);

}  // namespace kiln::graph
