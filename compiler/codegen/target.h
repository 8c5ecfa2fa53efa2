// What the compiler asks of a target: a schedule for a kernel, and source text for that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen {

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
  // How a kernel of the verified module runs there. UNIMPLEMENTED for a type that the target lacks.
  virtual absl::StatusOr<schedule::Tree> Schedule(ir::Module& module,
                                                  const ir::Kernel& kernel) const = 0;
  // REQUIRES: a verified tree of this target.
  virtual absl::StatusOr<EmittedKernel> Print(ir::Module& module,
                                              const schedule::Tree& tree) const = 0;
  // Both.
  absl::StatusOr<EmittedKernel> Emit(ir::Module& module, const ir::Kernel& kernel) const;
};

}  // namespace kiln::codegen
