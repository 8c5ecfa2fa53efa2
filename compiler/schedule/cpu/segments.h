// Loops taken apart where a comparison of their variable changes: cat, padding, borders.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

// In [breaks[i - 1], breaks[i]) of `var` (from 0, to its extent) the kernel's only phase does
// `steps[i]`: comparisons of `var` have one answer there, so selects and masks are decided, and
// what only the other answer needs is gone.
struct Segments {
  ir::IntExpr var;
  std::vector<ir::IntExpr> breaks;  // ascending, inside of the extent, the same in all iterations
  std::vector<std::vector<Step>> steps;
  std::deque<ir::Inst> insts;  // those of `steps` that are not the kernel's
  // False: some segment of the lanes begins at no multiple of their width.
  bool aligned = true;
};

// For kernels of one phase without inner loops. None where no comparison of a loop's variable
// decides a select or a mask, where the breaks have no known order, or where the code would grow
// too long.
std::optional<Segments> PlanSegments(ir::IntContext& ints, const Nest& nest,
                                     const VectorPlan& plan);

}  // namespace kiln::schedule::cpu
