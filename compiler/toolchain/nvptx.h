// LLVM's work on a module for NVIDIA's GPUs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace llvm {
class Module;
}

namespace kiln::toolchain {

struct NvptxOptions {
  std::string arch;            // sm_90a
  std::string features;        // of LLVM's target, as in +ptx80
  int optimization_level = 3;  // 1 to 3
  bool fast_math = false;
  bool early_loads = false;  // early_loads.h
};

// PTX of the module as Clang makes it before any pass. From level 2 on the passes are those of
// LLVM's own -O2 that find something in kernels, all of whose functions are inlined before; at
// level 1 they are its -O1. INTERNAL with LLVM's first error.
absl::StatusOr<std::string> WritePtx(llvm::Module& module, const NvptxOptions& options);

}  // namespace kiln::toolchain
