// Which inputs that a graph updates are written by the very kernels that compute their new values.
#pragma once

#include <vector>

#include "compiler/ir/module.h"

namespace kiln::memory {

// Where lowering ends with a kernel that copies a temporary buffer into an input of equal layout,
// and the buffer may as well live in the input's memory: removes that kernel. Returns for each
// buffer the input that it lies in, or -1.
//
// Legal is: the kernel that makes the buffer may write it in place of the input (ChooseInPlace), or
// copies the input there first and then stores to some of it, as a scatter does: that copy goes,
// too; nothing reads the input after it, the graph's outputs included; and neither it nor anything
// after it can fail (a library step, an index that is checked when it runs), for a run that fails
// leaves its inputs as they were. Indices computed of inputs alone, such as the place of a token
// in a cache of keys, are checked by a kernel in front of the others.
std::vector<ir::BufferId> WriteInputsInPlace(ir::Module& module);

}  // namespace kiln::memory
