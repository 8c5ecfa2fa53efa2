// A reduction of which each tile gives a part: a kernel before all tiles, one for each of them, and
// one after them.
#pragma once

#include "compiler/ir/module.h"

namespace kiln::schedule {

struct SplitSums {
  ir::Kernel zeros;   // stores what the reductions begin with
  ir::Kernel adds;    // as ir::AddsUp: takes the results of its first phase into what is there
  ir::Kernel result;  // what follows the first phase
};

// Whether the kernel's first phase has inner loops, does nothing but reduce over them by operations
// that results of two parts can be combined with, and no later phase has loops of its own.
bool MaySplitSums(const ir::Kernel& kernel);

// The three kernels that do what `kernel` does. They share new kTile buffers, one for each of the
// reductions, in their own types, which are those that they accumulate in. REQUIRES: MaySplitSums.
SplitSums Split(ir::Module& module, const ir::Kernel& kernel);

}  // namespace kiln::schedule
