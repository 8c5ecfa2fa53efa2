// Small windows of a plane: each plane is laid out once, masks and all, in memory of the task's
// own, which the windows then read without masks and in whole vectors.
#pragma once

#include <optional>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// For reductions over one or two inner loops of known length whose one load moves with them as it
// does with the last outer loop, of lanes: depthwise convolutions, pooling. None for others, where
// rows are long enough for their border to be left apart (interior.h), and where there are few
// planes.
std::optional<Tree> ScheduleStagedWindows(ir::Module& module, const ir::Kernel& kernel,
                                          const Nest& nest, const VectorPlan& plan, VectorIsa isa,
                                          const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
