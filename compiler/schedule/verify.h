// The verifier of schedule trees.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// Checks what tree.h states: values, variables and memory in scope where they are used; types;
// every access inside of what it accesses (bounds.h says how far that is proven); bindings that
// nest (tasks outside of lanes, lanes not in lanes); accumulators touched only as such, by lanes
// that have their own element; the stack's limit; and that no two iterations of a parallel loop can
// store to one place, as far as the indices show (the interpreter finds the rest). INTERNAL with
// the kernel and the node.
absl::Status Verify(const ir::Module& module, const Tree& tree);

// Bytes of one task's memory in kL1 and kRegister.
inline constexpr int64_t kMostStackBytes = 512 << 10;

}  // namespace kiln::schedule
