// Which iterations change nothing in a tile, because what they compute is masked away: in causal
// attention a tile of rows needs no keys beyond its last row, in that of a sliding window none that
// its first row no longer sees.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "compiler/ir/module.h"

namespace kiln::schedule {

// Of the iterations of a loop, only those below `row_end + end` and those not below
// `row_begin + begin` count in a tile of the rows [row_begin, row_end), where they are set.
struct Bound {
  std::optional<int64_t> begin, end;
};

// By loop variable. To run some of the other iterations, in all kernels alike, changes nothing.
using BoundedLoops = absl::flat_hash_map<ir::IntExpr, Bound>;

// Of the repeat's kernels, whose last tiled loop is the rows. What the skipped iterations would
// store is never loaded. Where a weight of zero meets an infinite value or a NaN there, the product
// is taken to be zero, and a row's maximum or its logarithm of a sum to be finite, as kernels that
// skip masked blocks have it.
BoundedLoops FindBoundedLoops(const ir::Module& module, const ir::Repeat& repeat);

}  // namespace kiln::schedule
