// The part of a kernel's points whose windows lie wholly inside of what they are taken from, which
// needs no masks: what is left around it is the border.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

struct Interior {
  // Of the lanes' loop, in whole vectors: there, and where the rows are inside, no comparison of a
  // window fails.
  int64_t begin = 0, end = 0;
  // Below 1 where the other outer loops are inside; null where no comparison depends on them.
  ir::IntExpr rows;
  // A phase's steps each: with those comparisons put in that depend on rows, and with all of them.
  std::vector<std::vector<Step>> row_steps, steps;
  std::deque<ir::Inst> insts;  // those of the steps that are not the kernel's
};

// For kernels whose lanes are those of an outer loop and that loop inside: convolutions of few
// channels, pooling. None where too few whole vectors are inside.
std::optional<Interior> PlanInterior(ir::IntContext& ints, const Nest& nest,
                                     const VectorPlan& plan);

}  // namespace kiln::schedule::cpu
