// Reductions with too few results to keep a GPU busy, as two kernels.
#pragma once

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"

namespace kiln::schedule::ptx {

// Whether all that the phase does is to reduce, by operations of numbers, and to store each element
// of what it stores once.
bool OnlyReduces(const ir::Phase& phase);

// Of each kernel that does nothing in loops but such a reduction, in its first phase, stores that
// only other kernels load, and sums that can be made in the same pass (late_sums.h): where its
// outer points are too few for the device, one of the inner loops is cut into parts of equal
// length. A new kernel before it reduces each part into temporary buffers and has the stores, and
// the kernel reduces those. Loops of symbolic length, and lengths that no suitable number divides,
// get a last part that is masked, where nothing is stored. REQUIRES: a verified module, which stays
// one.
void SplitReductions(ir::Module& module, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
