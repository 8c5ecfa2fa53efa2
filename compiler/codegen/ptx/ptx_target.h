// Target `ptx`: kernels for NVIDIA GPUs, as PTX.
#pragma once

#include "compiler/codegen/target.h"

namespace kiln::codegen {

// Architectures sm_80, sm_86, sm_89, sm_90 and sm_90a; others are INVALID_ARGUMENT.
TargetKind PtxTargetKind();

// The prelude of every kernel: vector types, memory, arithmetic, vector math, teams of threads.
absl::string_view PtxPrelude();

}  // namespace kiln::codegen
