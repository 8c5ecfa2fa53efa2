// How a kernel runs on a CPU.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// REQUIRES: a kernel of the verified module. UNIMPLEMENTED for complex types. Makes new variables
// in the module's IntContext.
absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
