// The textual form of schedules: a module with a `schedule` in the place of each kernel. parse.h
// reads it back to equal trees, apart from the numbers of loop variables and allocs.
#pragma once

#include <string>
#include <vector>

#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// `trees`: of kernels of the module, in order. In the place of one that has none is a comment.
std::string Print(const ir::Module& module, const std::vector<Tree>& trees);
std::string Print(const ir::Module& module, const Tree& tree);

}  // namespace kiln::schedule
