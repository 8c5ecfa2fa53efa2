// Bounds inference for tiles: what of a loop must run so that a tile of a later loop finds all that
// it reads (windows with their halo).
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// What of a dimension is read at `index` while `var` runs through `window` and every other variable
// of `index` through all of its loop: the least window, not clipped to the dimension. Nothing where
// `index` is not scale * var + rest, with a scale of at least 1 and a bounded rest that lacks
// `var` and values known at run time only.
std::optional<TileWindow> ReachOf(IntContext& ints, IntExpr index, IntExpr var,
                                  const TileWindow& window);

// What a tile runs at most where what the tile before has run of the window need not run again.
TileWindow Remaining(const TileWindow& window);

// Whether `window` has all that `need` has, in every tile.
bool Covers(const TileWindow& window, const TileWindow& need);
// The least window that covers both; nothing where none does, as they move on at different speeds.
std::optional<TileWindow> JoinWindows(const TileWindow& a, const TileWindow& b);

// The least windows with which the repeat's kernels find what they load, from the last kernel to
// the first: a kernel whose results none loads runs the tile itself. `repeat.windows` does not
// count. `carries`: each kernel runs what is Remaining of its window. REQUIRES: no sums. NOT_FOUND
// names the buffer and the kernel for which there are none: an index that ReachOf has no answer
// for, stores at other places than the loop's variable, or readers that move on at different
// speeds.
absl::StatusOr<std::vector<std::vector<TileWindow>>> InferWindows(const Module& module,
                                                                  const Repeat& repeat,
                                                                  bool carries = false);

}  // namespace kiln::ir
