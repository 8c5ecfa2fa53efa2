// How kernels run on an NVIDIA GPU: the schedules that target ptx chooses.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::ptx {

// REQUIRES: a kernel of the verified module. UNIMPLEMENTED for complex types and for what the
// target leaves to libraries (sorting).
absl::StatusOr<Tree> ScheduleKernel(ir::Module& module, const ir::Kernel& kernel,
                                    const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
