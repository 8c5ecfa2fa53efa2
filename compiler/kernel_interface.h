// What a kernel expects of every launch, stated in its own source and so in its machine code: the
// client compares each launch with it, whatever the program says. See kiln.v1.KernelInterface.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"

namespace kiln {

// The statement, kiln.v1.KernelInterface in one line, for what runs `kernels` in one launch.
// Appends to `emitted.symbols` those that only sizes of buffers and of the grid depend on. Equal
// kernels over equal buffers have equal ones.
absl::StatusOr<std::string> InterfaceOf(const ir::Module& module,
                                        absl::Span<const ir::Kernel> kernels,
                                        codegen::EmittedKernel& emitted);

}  // namespace kiln
