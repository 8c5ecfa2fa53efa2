// The fusion analyzer: which kernels become one launch, what stays on the chip, and which run tile
// by tile so that it fits.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/machine.h"

namespace kiln::schedule::gcu {

// Whether the operation can be a launch; UNIMPLEMENTED with what it lacks.
using Trial = std::function<absl::Status(const ir::Operation&)>;

// Lays out temporary buffers for the device, and puts kernels into Repeats: without steps where all
// that they hand on fits L2, with steps where it does tile by tile.
void Group(ir::Module& module, const Machine& machine, const Trial& trial);

}  // namespace kiln::schedule::gcu
