// Loads together, for machines that run a thread's instructions in order.
#pragma once

#include "llvm/IR/PassManager.h"

namespace kiln::toolchain {

// Adds a pass, for the end of a pipeline: within a block, as unrolling leaves it, loads move up to
// the first of them, as many as their results take some registers for, so that all are under way
// before the first result is waited for. REQUIRES: no store through one parameter of a function
// makes what a load through another one reads. Such a load passes that store; others stay behind
// stores, calls and inline assembly. A pointer that a branch chooses among parameters is one
// through all of these.
void AddEarlyLoads(llvm::ModulePassManager& passes);

}  // namespace kiln::toolchain
