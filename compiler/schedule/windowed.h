// Chains of kernels that read windows of what those before them store (convolutions, pooling), as
// an ir::Repeat whose tiles overlap. Whether that pays, a target decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/schedule/tileable.h"

namespace kiln::schedule {

// The kernel of operation `last` and those before it whose results only the chain loads, tiled
// along the first loop of `last` in which some kernel needs a window: one choice for each length of
// the chain, the shortest first. `loops` are those of planes that are apart (images of a batch),
// that loop, and then others that could be tiled, too. Nothing where no kernel needs a window.
std::vector<Tileable> FindWindowed(ir::Module& module, const BufferUses& uses, size_t last);

// Bytes that one tile's part of what the kernels hand on takes, symbols at their hints.
int64_t TileBytes(ir::Module& module, const Tileable& tileable, const std::vector<int64_t>& steps);

// How often an iteration of the kernels' loops runs on average, all kernels taken together by what
// they compute: 1 where no two tiles overlap.
double TimesComputed(ir::Module& module, const Tileable& tileable,
                     const std::vector<int64_t>& steps);

// One plane and as many iterations of the loop after it as fit `capacity_bytes`, or, where not even
// one does, one and as many of the next loop. Nothing where no tile fits.
std::optional<std::vector<int64_t>> FitSteps(ir::Module& module, const Tileable& tileable,
                                             int64_t capacity_bytes);

// Puts the longest chains whose tiles fit `capacity_bytes`, and that compute no more than half of
// it again, into repeats: for targets that keep what kernels hand on in memory on the chip.
void TileByWindows(ir::Module& module, int64_t capacity_bytes);

}  // namespace kiln::schedule
