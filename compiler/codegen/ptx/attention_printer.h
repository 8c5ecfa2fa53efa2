// The tree of attention on tensor cores (schedule/ptx/attention.h, attention_warps.h) as C++: a
// call of the prelude's KAttention or KAttentionByWarps.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

bool IsAttention(const schedule::Tree& tree);

// As PrintKernel, for sm_90a for blocks of which each of `compute_units` runs one; there four
// tensor maps, of queries, keys, values and the result, follow the other parameters. REQUIRES:
// IsAttention(tree).
absl::StatusOr<EmittedKernel> PrintAttention(ir::Module& module, const schedule::Tree& tree,
                                             int compute_units, bool waits);

// The tree's micro-kernel of that kind; null where there is none.
const schedule::Micro* FindMicro(const schedule::Tree& tree, schedule::MicroKind kind);

// Gives what there is one of, which has any stride, one that the driver takes.
void AllowStrides(EmittedTensorMap& map);

}  // namespace kiln::codegen::ptx
