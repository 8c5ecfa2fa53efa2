// Attention of few queries on sm_90a: a cluster of blocks for each head of keys.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

// Whether the tree is one of schedule/ptx/few_queries.h.
bool IsOfFewQueries(const schedule::Tree& tree);

// REQUIRES: IsOfFewQueries. Parameters as PrintKernel has them, then tensor maps of keys and
// values.
absl::StatusOr<EmittedKernel> PrintFewQueries(ir::Module& module, const schedule::Tree& tree);

}  // namespace kiln::codegen::ptx
