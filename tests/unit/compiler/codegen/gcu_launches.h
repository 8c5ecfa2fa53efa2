// Groups of kernels and their launches on the simulator, for tests of what target gcu chooses.
#pragma once

#include <string>
#include <vector>

#include "compiler/codegen/gcu/launch.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/machine.h"
#include "tests/unit/compiler/codegen/check_module.h"

namespace kiln::codegen {

// The reference profile.
const schedule::gcu::Machine& Reference();

// `depth` convolutions of 3 x 3 over `images` pictures of `size` x `size` and `channels` channels,
// with nothing below 0 left of each.
std::string Chain(int images, int channels, int size, int depth);

// Fails the current test where the result is not valid. `without`: strategies that are left out.
void Group(ir::Module& module, const std::vector<std::string>& without = {});

// The same for another machine.
void GroupFor(ir::Module& module, const schedule::gcu::Machine& machine,
              const std::vector<std::string>& without);

// Groups for a machine as the reference profile, but of so much L2, and compares what the groups
// give on the simulator and in the interpreter with what the module's kernels give one after
// another. No launch may need more L2. The module after grouping is returned. `without`: as for
// Group.
ir::Module CheckGroups(const std::string& text, int64_t l2_bytes,
                       const std::vector<std::string>& without, const CheckOptions& options);

// Seconds on the simulator of that machine's profile, with zeros everywhere.
double Simulate(const ir::Module& module, const gcu::Launch& launch,
                const schedule::gcu::Machine& machine = Reference());

}  // namespace kiln::codegen
