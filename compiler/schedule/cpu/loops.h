// Kernels of plain loops: rows for tasks, a loop for lanes, reductions in registers.
#pragma once

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

Tree ScheduleLoops(ir::Module& module, const ir::Kernel& kernel, Nest nest, VectorIsa isa,
                   const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
