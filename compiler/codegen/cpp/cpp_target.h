// Target `cpp`: readable vectorized, threaded C++ for the client's CPU.
#pragma once

#include <memory>

#include "compiler/codegen/target.h"

namespace kiln::codegen {

TargetKind CppTargetKind();

// Vector width follows device.features: AVX-512 (avx512f, avx512bw, avx512dq, avx512vl), AVX2 with
// FMA, else baseline x86-64.
std::unique_ptr<Target> MakeCppTarget(DeviceInfo device);

// The prelude of every kernel: the ABI, vector types and the vector math, and which routines there
// are.
absl::string_view CppPrelude();

// After the prelude: bodies of the routines.
absl::string_view CppRoutines();

}  // namespace kiln::codegen
