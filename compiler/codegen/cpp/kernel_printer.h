// A schedule tree as C++ on the prelude.
#pragma once

#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::cpp {

// REQUIRES: a verified tree of a kernel of `module`.
EmittedKernel PrintKernel(ir::Module& module, const schedule::Tree& tree);

}  // namespace kiln::codegen::cpp
