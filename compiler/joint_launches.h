// Equal kernels that need not wait for each other, as the updates of an optimizer's many small
// tensors: what can be one launch.
#pragma once

#include <vector>

#include "compiler/ir/identity.h"
#include "compiler/ir/module.h"
#include "compiler/memory/plan_memory.h"

namespace kiln {

// By operation: at the first of those that may run at once in its place all of them, ascending;
// else nothing. They are equal by `identities`, and none writes what another one of them, or an
// operation between them, reads or writes, wherever `plan` has put it. Their buffers are at most
// `most_buffers` in all.
std::vector<std::vector<size_t>> FindJointLaunches(const ir::Module& module,
                                                   const memory::Plan& plan,
                                                   const std::vector<ir::Identity>& identities,
                                                   size_t most_buffers);

}  // namespace kiln
