// Matrix products and what is one in disguise: panels of one operand, rows of the other, tiles of
// sums in registers, and the kernel's later phases on each tile.
#pragma once

#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

Tree ScheduleContraction(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                         ContractionPlan plan, int64_t l2_bytes);

}  // namespace kiln::schedule::cpu
