// What a group of kernels keeps in L2, and where.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/buckets.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

struct L2Buffer {
  ir::BufferId buffer = -1;
  std::vector<ir::IntExpr> sizes, strides;  // elements, of one tile
  int64_t bytes = 0;                        // at most
  size_t first = 0, last = 0;               // kernels that touch it, or while which it is loaded
  int64_t offset = 0;                       // bytes from the launch's own memory on
};

struct L2Plan {
  std::vector<L2Buffer> buffers;
  int64_t bytes = 0;  // the peak
};

// Gives every buffer its offset: no two overlap that live at one time.
void Place(L2Plan& plan);

// Strides without gaps, with dimensions in the order of their weights: the greatest is outermost.
std::vector<ir::IntExpr> PackedStrides(ir::IntContext& ints, const std::vector<ir::IntExpr>& sizes,
                                       const std::vector<int64_t>& weights);

// What an operation runs for the sizes of a bucket.
struct Version {
  std::vector<ir::Kernel> kernels;
  int64_t step = 0;  // iterations of a tile of the kernels' first loops; 0: everything is one tile
  InL2 keeps;
  Bucket bucket;
};
// In the order in which they are tried; one where the operation has no versions. UNIMPLEMENTED for
// Repeats of several steps, windows or sums.
absl::StatusOr<std::vector<Version>> VersionsOf(const ir::Module& module,
                                                const ir::Operation& operation);
// What these are chosen by; nothing where there is one.
std::vector<ir::IntExpr> SymbolsOf(const ir::Operation& operation);

// Places for what it keeps. UNIMPLEMENTED for sizes without bounds.
absl::StatusOr<L2Plan> PlanL2(ir::Module& module, const std::vector<ir::IntExpr>& symbols,
                              const Version& version);

// The kernel for the tile of its first loop that begins at `tile`, at most `step` iterations of all
// `extent`: what is kept has one tile.
ir::Kernel ForTile(ir::Module& module, const ir::Kernel& kernel, const InL2& keeps,
                   ir::IntExpr tile, ir::IntExpr extent, int64_t step);

}  // namespace kiln::schedule::gcu
