// The schedule that chooses nothing: outer loops as tasks, inner ones one after another. What a
// target begins with, and what others are compared with.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// REQUIRES: a kernel of the verified module. UNIMPLEMENTED for complex types.
absl::StatusOr<Tree> SchedulePlainly(ir::Module& module, const ir::Kernel& kernel);

}  // namespace kiln::schedule
