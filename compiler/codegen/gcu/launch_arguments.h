// What a launch is called with: addresses of buffers in L3, and sizes.
#pragma once

#include <vector>

#include "compiler/codegen/gcu/launch.h"
#include "compiler/codegen/gcu/stage.h"

namespace kiln::codegen::gcu {

// Makes the operation's buffers that lie in L3, at least in one of its versions, the launch's first
// arguments, in order of first use. By buffer: `in_l3` has the places of these, and `loaded_only`
// says which of them no kernel stores.
void AddBuffers(const ir::Module& module, const ir::Operation& operation,
                const std::vector<schedule::gcu::Version>& versions, Launch& launch,
                std::vector<Placement>& in_l3, std::vector<bool>& loaded_only);

// Symbols that the program reads become arguments, behind the buffers.
void AddSymbols(Launch& launch);

}  // namespace kiln::codegen::gcu
