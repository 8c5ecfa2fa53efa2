// Source for kernels with Schedule::kLoops.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/codegen/cpp/vector_plan.h"
#include "compiler/codegen/target.h"
#include "compiler/ir/module.h"

namespace kiln::codegen::cpp {

// The kernel's own text, without the prelude.
absl::StatusOr<EmittedKernel> EmitLoops(ir::Module& module, const ir::Kernel& kernel, VectorIsa isa,
                                        const DeviceInfo& device);

}  // namespace kiln::codegen::cpp
