// Kernels of several loops with too few outer points to keep a GPU busy, as a kernel for each loop.
#pragma once

#include "compiler/ir/module.h"
#include "compiler/schedule/device_info.h"

namespace kiln::schedule::ptx {

// Of each kernel with several phases that have loops, none ordered, as a batch norm's: where its
// outer points give the device few threads and each of them much to do, every such phase becomes a
// kernel of its own, with the phases without loops that follow it; sums that need no other pass
// than those before them stay with those (late_sums.h). One that reduces nothing gets all loops as
// outer ones; of others SplitReductions can make more threads then. What is computed
// once for an outer point and taken by a later phase is handed on in memory, where it is stored
// anyway or in a temporary buffer; constants, and loads of what the kernel does not store, are made
// again. REQUIRES: a verified module, which stays one.
void SeparatePhases(ir::Module& module, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
