// A reduction as two kernels: one reduces parts of it, the other the parts.
#pragma once

#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule::ptx {

// Where the loops of a kernel's first phase are cut.
struct CutPlan {
  std::vector<ir::IntExpr> whole;  // of which each iteration is a part
  ir::IntExpr loop;                // cut into `pieces`, or null
  int64_t pieces = 1;
  bool parts_beside = false;  // in memory, those of one outer point
};

// Returns the kernel that reduces parts, and makes `kernel` reduce those: what its loops reduce is
// in temporary buffers between them. Where pieces are not equally long the last ones are masked.
// REQUIRES: the first phase and all others with loops do nothing but reduce, by operations of
// numbers, and store; the others are FindLateSums of the first; where there are stores, pieces are
// equally long.
ir::Kernel CutReduction(ir::Module& module, const CutPlan& plan, ir::Kernel& kernel);

}  // namespace kiln::schedule::ptx
