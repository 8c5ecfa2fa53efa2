// A kernel as the emitters see it: memory accesses by linear index, loops of one iteration gone,
// adjacent loops that walk memory as one loop joined.
#pragma once

#include <optional>
#include <vector>

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

struct Nest {
  std::vector<ir::IntExpr> outer;
  std::vector<NestPhase> phases;
};

// Joins loops of `module` into new variables of its IntContext. Instructions stay the kernel's.
// UNIMPLEMENTED for complex types. `collapse`: false keeps loops apart (but drops those of size 1).
absl::StatusOr<Nest> BuildNest(ir::Module& module, const ir::Kernel& kernel, bool collapse);

// Number of a load's or store's operands that are indices.
int NumIndirect(const ir::Inst& inst);

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
