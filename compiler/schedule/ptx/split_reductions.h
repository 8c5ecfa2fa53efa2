// Reductions with too few results to keep a GPU busy, as two kernels.
#pragma once

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"

namespace kiln::schedule::ptx {

// Of each kernel whose first phase alone has loops, all of it reductions that fold numbers, and
// stores that only other kernels load: where its outer points are too few for the device, one of
// the inner loops is cut into parts of equal length. A new kernel before it reduces each part into
// a temporary buffer and has the stores, and the kernel reduces those. Loops of symbolic length,
// and lengths that no suitable number divides, get a last part that is masked, where nothing is
// stored. REQUIRES: a verified module, which stays one.
void SplitReductions(ir::Module& module, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
