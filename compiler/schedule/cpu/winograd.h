// Convolutions by Winograd's method (winograd_plan.h).
#pragma once

#include "compiler/schedule/cpu/winograd_plan.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// A task takes a block of an image's tiles and some panels of weights: it transforms the tiles,
// multiplies each plane of them with that of a panel, makes sums of places of the products, and
// runs the kernel's later phases on those. REQUIRES: the plan's panels have planes
// (pack_operand.h).
Tree ScheduleWinograd(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                      const WinogradPlan& plan, const DeviceInfo& device);

}  // namespace kiln::schedule::cpu
