// Clean-up inside one kernel. Private to compiler/fusion.
#pragma once

#include "compiler/ir/module.h"

namespace kiln::fusion {

// Shares equal values, folds what is exact (x * 1, casts to the same type, choices by a constant;
// never anything that changes a bit of a result), removes instructions without effect and empty
// phases, and numbers values from 0 in the order of their definition.
void SimplifyKernel(ir::Kernel& kernel);

}  // namespace kiln::fusion
