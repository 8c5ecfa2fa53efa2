// What a group of kernels keeps in L2, and where.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/buckets.h"
#include "compiler/schedule/gcu/tiles.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

struct L2Buffer {
  ir::BufferId buffer = -1;
  std::vector<ir::IntExpr> sizes, strides;  // elements, of one tile
  int64_t bytes = 0;                        // at most
  size_t first = 0, last = 0;               // kernels that touch it, or while which it is loaded
  std::optional<size_t> stored_by;          // the kernel; nothing for what is but loaded
  int64_t offset = 0;                       // bytes from the launch's own memory on
  bool is_placed = false;                   // its offset stays
};

struct L2Plan {
  std::vector<L2Buffer> buffers;
  int64_t bytes = 0;  // the peak
};

// Gives every buffer its offset that has none yet: no two overlap that live at one time.
void Place(L2Plan& plan);

// Strides without gaps, with dimensions in the order of their weights: the greatest is outermost.
std::vector<ir::IntExpr> PackedStrides(ir::IntContext& ints, const std::vector<ir::IntExpr>& sizes,
                                       const std::vector<int64_t>& weights);

// What an operation runs for the sizes of a bucket.
struct Version {
  std::vector<ir::Kernel> kernels;
  // Iterations of a tile of TileLoop; 0: everything is one tile.
  int64_t step = 0;
  // Kernels that run before and after all tiles, as those of an ir::Repeat.
  size_t before = 0, after = 0;
  // By kernel, of its first loop; empty where each runs the tile itself.
  std::vector<Overlap> overlaps;
  // What lies in L2; of what kernels store one tile at a time, of what they only load all, which is
  // loaded once.
  InL2 keeps;
  Bucket bucket;
};
// In the order in which they are tried; one where the operation has no versions. UNIMPLEMENTED for
// Repeats of several steps.
absl::StatusOr<std::vector<Version>> VersionsOf(const ir::Module& module,
                                                const ir::Operation& operation);
// What these are chosen by; nothing where there is one.
std::vector<ir::IntExpr> SymbolsOf(const ir::Operation& operation);

// Places for what it keeps. UNIMPLEMENTED for sizes without bounds.
absl::StatusOr<L2Plan> PlanL2(ir::Module& module, const std::vector<ir::IntExpr>& symbols,
                              const Version& version);

}  // namespace kiln::schedule::gcu
