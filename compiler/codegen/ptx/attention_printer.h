// The tree of attention on sm_90a's tensor cores (schedule/ptx/attention.h) as C++: a call of the
// prelude's KAttention.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

bool IsAttention(const schedule::Tree& tree);

// As PrintKernel, for blocks of which each of `compute_units` runs one; four tensor maps, of
// queries, keys, values and the result, follow the other parameters. REQUIRES: IsAttention(tree).
absl::StatusOr<EmittedKernel> PrintAttention(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units);

}  // namespace kiln::codegen::ptx
