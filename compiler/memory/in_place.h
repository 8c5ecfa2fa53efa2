// When a kernel may write its result over an operand.
#pragma once

#include <vector>

#include "compiler/ir/module.h"

namespace kiln::memory {

// Whether a load or store reaches an element that only a run can tell, and that is checked then.
bool HasIndirect(const ir::Inst& inst);

// For each temporary buffer that `kernel` stores (aligned with `stored`): the one of `dying` whose
// storage it can take over, or -1. Each of `dying` is given away once. `stored` are buffers that
// this kernel makes, `dying` are temporary buffers made earlier that nothing reads after it.
//
// Legal is: equal layout and element size; one store; every load of the dying buffer reads the very
// element that its loop iteration stores, before that store, or does so in an earlier phase at the
// same outer point; and no two iterations touch one element. In a contraction only the epilogue may
// load the dying buffer.
std::vector<ir::BufferId> ChooseInPlace(ir::Module& module, const ir::Kernel& kernel,
                                        const std::vector<ir::BufferId>& stored,
                                        const std::vector<ir::BufferId>& dying);

}  // namespace kiln::memory
