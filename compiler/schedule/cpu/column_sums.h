// Sums down the columns of a matrix that no cache holds, such as a product of one row with weights
// that are contiguous along its columns, and their greatest or least elements: each task reads some
// whole rows, as they lie in memory, and another pass adds up what the tasks have. In how many
// parts does not depend on the threads.
#pragma once

#include <optional>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// Nothing where other loops serve better. A few outer points that share a matrix (the rows of a
// small batch) read it once for all. REQUIRES: `plan` is the nest's.
std::optional<Tree> ScheduleColumnSums(ir::Module& module, const ir::Kernel& kernel,
                                       const Nest& nest, const VectorPlan& plan, VectorIsa isa,
                                       const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
