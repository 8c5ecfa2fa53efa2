// What an inference graph computes from its parameters alone, such as panels of a weight that
// products read in place, is computed once for many calls: the module's first operations make
// prepared buffers, which the client keeps until it sees a parameter change.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"

namespace kiln::prepare {

// Moves kernels that depend on parameters and constants alone to the front, their temporary buffers
// becoming prepared ones, then lays out what contractions read of such buffers as the target's
// schedules like it. Where the prepared buffers would take more than `most_bytes` together, a
// kernel stays as it is and runs in every call. REQUIRES: a verified, fused module.
absl::Status Prepare(const codegen::Target& target, int64_t most_bytes, ir::Module& module);

}  // namespace kiln::prepare
