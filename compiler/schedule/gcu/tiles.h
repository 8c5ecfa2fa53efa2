// What of a group's kernels and of the buffers that it keeps belongs to one tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

struct Version;

// The dimension of a kept buffer that is tiled, and what of it is there for a tile: its first
// element is that of the window's first index, even where there is no such index.
struct TiledDim {
  size_t dim = 0;
  ir::TileWindow window;
};
using TiledDims = absl::flat_hash_map<ir::BufferId, TiledDim>;

// The loop of which tiles are, where the version has a step.
ir::IntExpr TileLoop(const Version& version);

// The loop of kernel `k` that is tiled: of one that AddsUp the first of those that it sums over;
// null of one that runs before or after all tiles.
ir::IntExpr TiledLoopOf(const Version& version, size_t k);

// Of the buffers that the version keeps; none where it has no step.
TiledDims TiledDimsOf(const Version& version);

// Iterations of a loop.
struct Part {
  ir::IntExpr begin, count;
};

// The tile that begins at `first`, of at most `step` iterations.
Part TileAt(ir::IntContext& ints, ir::IntExpr first, ir::IntExpr extent, int64_t step);

// The kernel with `part` of its first loop, or where it AddsUp of the first that it sums over, in
// the tile that begins at `first`. Indices are those of the whole buffer, but of `kept` ones those
// of the tile.
ir::Kernel ForTile(ir::Module& module, const ir::Kernel& kernel, const Part& part,
                   const TiledDims& kept, ir::IntExpr first);

// How a kernel runs in tiles that overlap.
struct Overlap {
  ir::TileWindow window;  // what is there of its loop for a tile
  int64_t extent = 0;     // of its loop
  // Whether what the tile before has of it stays, and only the rest is run. Else all is run.
  bool carried = false;
};

// Tiles one after another in which every kernel runs as many iterations in one as in the next.
struct TileRun {
  // From iteration scale * first + offset on.
  struct Range {
    int64_t offset = 0, count = 0;
  };
  int64_t first = 0, tiles = 0;  // iteration of the group's loop, and how many tiles
  std::vector<Range> runs;       // by kernel
  std::vector<Range> stays;      // by kernel: what is moved to where it lies in the next tile
};
// All tiles of `step` iterations of the last kernel's loop.
std::vector<TileRun> RunsOf(const std::vector<Overlap>& kernels, int64_t step);

// Iterations that two tiles need: none where not more than 0.
int64_t StaysOf(const ir::TileWindow& window);

// Whether what stays is not so much that it would be moved over itself.
bool MayCarry(const std::vector<Overlap>& kernels, int64_t step);

// Of the version, whose tiles overlap, one whose kernels run no iteration twice: what two tiles
// need stays. Nothing where no two do, or where it may not be carried.
std::optional<Version> Carrying(const ir::Module& module, const ir::Repeat& repeat,
                                const Version& version);

// Moves `range` of the buffer's tiled dimension to where it lies in the tile after.
ir::Kernel MoveRows(ir::Module& module, const ir::Kernel& stores, ir::BufferId buffer,
                    const TiledDim& dim, const TileRun::Range& range, int64_t step);

}  // namespace kiln::schedule::gcu
