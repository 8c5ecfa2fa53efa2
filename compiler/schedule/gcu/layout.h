// How temporary buffers lie in memory.
#pragma once

#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::gcu {

// Temporary buffers that nobody but kernels sees, and one of them stores; by buffer.
std::vector<bool> OwnBuffers(const ir::Module& module, const BufferUses& uses);

// Temporary buffers that only kernels see get the dimensions that the model has (Unflatten), and
// the order of these in which contractions store columns side by side.
void LayOut(ir::Module& module);

}  // namespace kiln::schedule::gcu
