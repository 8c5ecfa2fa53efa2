// Kernels that lay a weight out as panels (pack_operand.h), whole panels by one micro-kernel each.
#pragma once

#include <optional>

#include "compiler/ir/module.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// Nothing for a kernel that computes, whose operand is not contiguous along k, or whose last panel
// has fewer lanes than the others.
std::optional<Tree> SchedulePanels(ir::Module& module, const ir::Kernel& kernel, const Nest& nest);

}  // namespace kiln::schedule::cpu
