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

// Puts kernels into repeats where tiles of what they hand on stay in a core's cache, and packing
// operands anew for each tile costs less than that saves.
void Tile(ir::Module& module, const DeviceInfo& device);

// REQUIRES: as ScheduleKernel.
absl::StatusOr<Tree> ScheduleRepeat(ir::Module& module, const ir::Repeat& repeat,
                                    const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
