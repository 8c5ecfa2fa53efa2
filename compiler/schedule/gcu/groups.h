// The fusion analyzer: which kernels become one launch, what stays on the chip, and which run tile
// by tile so that it fits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/machine.h"

namespace kiln::schedule::gcu {

// Whether the operation can be a launch; UNIMPLEMENTED with what it lacks.
using Trial = std::function<absl::Status(const ir::Operation&)>;

// Lays out temporary buffers for the device, and puts kernels into Repeats: without steps where all
// that they hand on fits L2, with steps where it does tile by tile, with a version for each range
// of sizes that are known at run time only. `without`: strategies that are left out, "afe", "tlf"
// or "dafe".
void Group(ir::Module& module, const Machine& machine, const std::vector<std::string>& without,
           const Trial& trial);

}  // namespace kiln::schedule::gcu
