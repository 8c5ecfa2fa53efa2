// Which iterations change nothing in a tile, because what they compute is masked away: in causal
// attention a tile of rows needs no keys beyond its last row.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/ir/module.h"

namespace kiln::schedule {

// By loop variable: only iterations below `end + offset` count in a tile whose rows are below
// `end`; to run some of the others, in all kernels alike, changes nothing either.
using BoundedLoops = absl::flat_hash_map<ir::IntExpr, int64_t>;

// Of the repeat's kernels, whose last tiled loop is the rows. What the skipped iterations would
// store is never loaded. Where a weight of zero meets an infinite value or a NaN there, the product
// is taken to be zero, as kernels that skip masked blocks have it.
BoundedLoops FindBoundedLoops(const ir::Module& module, const ir::Repeat& repeat);

}  // namespace kiln::schedule
