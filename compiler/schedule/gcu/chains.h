// Kernels that read windows of what those before them store (convolutions, pooling), for groups
// whose tiles overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/tiles.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::gcu {

// The kernels from `begin` to the one before `end`, tiled along a loop of the last one.
struct Chain {
  size_t begin = 0, end = 0;
  std::vector<int64_t> loops;  // by kernel: which of its outer loops moves with that of the last
  // By kernel: where what two tiles need is run twice, and where it is not.
  std::vector<Overlap> twice, once;
};

// All that end with the kernel of operation `last` and begin at `first` or after it, the shortest
// first: along the first loop of `last` by which some kernel needs more than the tile itself.
// Loops have known lengths. What a kernel stores for two tiles, or not all of, only the chain
// loads. REQUIRES: kernels from `first` to `last`.
std::vector<Chain> ChainsTo(const ir::Module& module, const BufferUses& uses, size_t first,
                            size_t last);

}  // namespace kiln::schedule::gcu
