// A kernel as the emitters see it: memory accesses by linear index, loops of one iteration gone,
// adjacent loops that walk memory as one loop joined.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

struct Step {
  const ir::Inst* inst = nullptr;
  ir::IntExpr index;  // kLoad, kStore: in elements from the buffer's start; kIndex: the value
};

// As a leaf of a tree.
Compute ToCompute(const Step& step);

struct NestPhase {
  std::vector<ir::IntExpr> inner;  // kVar each, outermost first: row-major order of the reduction
  bool ordered = false;            // ir::IsOrdered
  std::vector<Step> steps;
};

// The part [begin, end) of a loop that runs for a tile.
struct TilePart {
  ir::IntExpr begin, end;
  // Of a tiled loop: `step` iterations, or fewer in the last tile. 0: of a loop whose other
  // iterations change nothing; it begins at a multiple of kPartUnit.
  int64_t step = 0;
  bool is_window = false;  // of which any tile may have fewer: what lies outside of the loop
};
inline constexpr int kPartUnit = 64;

// Where a tile of a buffer lies: element `indices` at the sum of (indices - origin) * strides.
struct TileLayout {
  std::vector<ir::IntExpr> origin, strides;
};

// What one tile is, for a kernel of a Repeat.
struct Tile {
  ir::IntContext::VarMap fixed;  // outer loops of which it is one iteration: which one
  absl::flat_hash_map<ir::IntExpr, TilePart> parts;       // of other loops
  absl::flat_hash_map<ir::BufferId, TileLayout> layouts;  // of the kTile buffers
};

struct Nest {
  std::vector<ir::IntExpr> outer;
  std::vector<NestPhase> phases;
  const Tile* tile = nullptr;  // where this runs inside of a task, for one tile

  // The part of the loop that runs here; null for all of it.
  const TilePart* PartOf(ir::IntExpr var) const;
};

// Joins loops of `module` into new variables of its IntContext. Instructions stay the kernel's.
// UNIMPLEMENTED for complex types. `collapse`: false keeps loops apart (but drops those of size 1).
// `tile`, where there is one, outlives the nest.
absl::StatusOr<Nest> BuildNest(ir::Module& module, const ir::Kernel& kernel, bool collapse,
                               const Tile* tile = nullptr);

// Number of a load's or store's operands that are indices.
int NumIndirect(const ir::Inst& inst);

// Whether what it reads, stores or gives as an index depends on one of the variables by itself.
bool Uses(const Step& step, const std::vector<ir::IntExpr>& vars);
bool AnyUses(const std::vector<const Step*>& steps, const std::vector<ir::IntExpr>& vars);

// Whether the nest is one loop of its first phase, in any order, and then phases without loops.
bool IsOneReduction(const Nest& nest);
// The steps of all phases but the first.
std::vector<const Step*> LaterSteps(const Nest& nest);

// Whether it is the same in all iterations and known before the first.
bool IsFixed(ir::IntExpr expr);

ir::IntExpr Extent(ir::IntContext& ints, ir::IntExpr var);
// Of the loops' extents; 1 for none.
ir::IntExpr NumPoints(ir::IntContext& ints, const std::vector<ir::IntExpr>& loops);
// The number of a point of `loops`, outermost first, in row-major order.
ir::IntExpr PointNumber(ir::IntContext& ints, const std::vector<ir::IntExpr>& loops);
// At the hints of symbols, at least 1.
int64_t ExtentHint(ir::IntContext& ints, ir::IntExpr var);

// How far `index` moves from one lane to the next, over `width` lanes of `var` whose first is a
// multiple of `width`: 0 where it stays, null where lanes are not equally far apart. Indirect
// operands count as constant.
ir::IntExpr LaneStride(ir::IntContext& ints, ir::IntExpr index, ir::IntExpr var, int width);

}  // namespace kiln::schedule
