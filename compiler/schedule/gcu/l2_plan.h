// What a group of kernels keeps in L2, and where.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

struct L2Buffer {
  ir::BufferId buffer = -1;
  std::vector<ir::IntExpr> sizes, strides;  // elements, of one tile
  int64_t bytes = 0;                        // at most
  size_t first = 0, last = 0;               // kernels that touch it
  int64_t offset = 0;                       // bytes from the launch's own memory on
};

struct L2Plan {
  std::vector<L2Buffer> buffers;
  int64_t bytes = 0;  // the peak
};

// Strides without gaps, with dimensions in the order of their weights: the greatest is outermost.
std::vector<ir::IntExpr> PackedStrides(ir::IntContext& ints, const std::vector<ir::IntExpr>& sizes,
                                       const std::vector<int64_t>& weights);

// Places for the kTile buffers of a Repeat; nothing for a Kernel. UNIMPLEMENTED for sizes without
// bounds.
absl::StatusOr<L2Plan> PlanL2(ir::Module& module, const ir::Operation& operation);

// The kernel of a Repeat for the tile of its first loop that begins at `tile`, at most `step`
// iterations of all `extent`: kTile buffers have one tile.
ir::Kernel ForTile(ir::Module& module, const ir::Kernel& kernel, ir::IntExpr tile,
                   ir::IntExpr extent, int64_t step);

}  // namespace kiln::schedule::gcu
