// The tree of attention's gradients on sm_90a's tensor cores (schedule/ptx/gradients.h) as C++: a
// call of the prelude's KGradients.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

bool IsGradients(const schedule::Tree& tree);

// As PrintKernel, for `compute_units` multiprocessors; seven tensor maps, of queries, keys, values,
// the result's gradient and the gradients of the first three, follow the other parameters.
// REQUIRES: IsGradients(tree).
absl::StatusOr<EmittedKernel> PrintGradients(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units);

}  // namespace kiln::codegen::ptx
