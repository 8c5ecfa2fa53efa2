// Rows of matrices that a library multiplies, at pitches that its fast kernels take.
#pragma once

#include "compiler/ir/module.h"

namespace kiln::schedule::ptx {

// Of each large temporary buffer of 16-bit numbers that kernels make and that library steps take as
// a matrix of a product alone (aten.mm, aten.addmm): rows whose length is no multiple of 16 bytes
// get that many elements more, which no kernel stores; the windows are of all of them and say so.
// Such a library would have to copy the matrix else. REQUIRES: a verified module, which stays one.
void PadRows(ir::Module& module);

}  // namespace kiln::schedule::ptx
