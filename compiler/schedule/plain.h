// The schedule that chooses nothing: outer loops as tasks, inner ones one after another. What a
// target begins with, and what others are compared with.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// REQUIRES: a kernel of the verified module. UNIMPLEMENTED for complex types. `sort_lanes`: of the
// loops before and after a sort.
absl::StatusOr<Tree> SchedulePlainly(ir::Module& module, const ir::Kernel& kernel,
                                     int sort_lanes = 1);

}  // namespace kiln::schedule
