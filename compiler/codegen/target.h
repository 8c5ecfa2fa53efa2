// What the compiler asks of a target: source text for a kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"

namespace kiln::codegen {

// The device as code generators read it; a plain copy of what the client described.
struct DeviceInfo {
  std::string arch;                   // LLVM CPU name
  std::vector<std::string> features;  // sorted
  int64_t l1_bytes = 32 << 10;        // defaults stand in for unknown sizes
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 16 << 20;
  bool HasFeature(absl::string_view feature) const;
};

struct EmittedKernel {
  // Text that the source needs before it and shares with all kernels of its target; it lives as
  // long as the process.
  absl::string_view prelude;
  // The rest of the source, apart from the symbol's name: it contains kSymbolPlaceholder wherever
  // the kernel's own name stands, so that equal kernels have equal text.
  std::string source;
  std::vector<ir::BufferId> buffers;  // arguments, in order
  std::vector<int> symbols;           // ids of the IntContext's symbols passed after them, in order
  ir::IntExpr scratch_bytes;          // for the launch
  ir::IntExpr thread_scratch_bytes;   // for each thread
};
inline constexpr absl::string_view kSymbolPlaceholder = "KILN_KERNEL_SYMBOL";

class Target {
 public:
  virtual ~Target() = default;
  virtual absl::string_view name() const = 0;
  // REQUIRES: a verified module. UNIMPLEMENTED for a type that the target lacks.
  virtual absl::StatusOr<EmittedKernel> Emit(ir::Module& module,
                                             const ir::Kernel& kernel) const = 0;
};

}  // namespace kiln::codegen
