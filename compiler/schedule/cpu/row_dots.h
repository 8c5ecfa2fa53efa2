// A few rows times a matrix whose rows are contiguous along the sum, such as a token times the
// weights of a linear layer, or each of a batch of them times its own: a matrix is read once, row
// by row as it lies in memory, and widened, scaled or otherwise computed on the way into registers.
#pragma once

#include <optional>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// Nothing where other loops serve better. REQUIRES: `plan` is the nest's.
std::optional<Tree> ScheduleRowDots(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                                    const VectorPlan& plan, VectorIsa isa);

}  // namespace kiln::schedule::cpu
