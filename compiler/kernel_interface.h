// What a kernel expects of every launch, stated in its own source and so in its machine code: the
// client compares each launch with it, whatever the program says. See kiln.v1.KernelInterface.
#pragma once

#include "absl/status/status.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"

namespace kiln {

// Appends the statement to `emitted.source`, and to `emitted.symbols` those that only the sizes of
// buffers depend on. Equal kernels over equal buffers still have equal text.
absl::Status StateInterface(const ir::Module& module, const ir::Kernel& kernel,
                            codegen::EmittedKernel& emitted);

}  // namespace kiln
