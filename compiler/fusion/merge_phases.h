// Fewer phases and less memory within one kernel. Private to compiler/fusion.
#pragma once

#include <functional>

#include "compiler/ir/module.h"

namespace kiln::fusion {

// Joins phases with equal inner loops where neither waits for something between them.
void MergePhases(ir::Module& module, ir::Kernel& kernel);

// Where `is_private` says that nobody else uses a buffer that the kernel stores, computes cheap
// elements again instead of loading them, and drops stores that nothing loads.
void DropPrivateStores(ir::Module& module, ir::Kernel& kernel,
                       const std::function<bool(ir::BufferId)>& is_private);

}  // namespace kiln::fusion
