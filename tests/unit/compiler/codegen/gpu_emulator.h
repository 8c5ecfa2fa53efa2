// Runs kernels that target ptx printed on this machine's CPU: their C++ is compiled for it, and
// each thread of a block is a fiber, which goes on at barriers when all that meet there have come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kiln::codegen {

// What a kernel's source needs before it, instead of what an NVIDIA GPU has.
std::string EmulatedPrelude();

// Calls `entry`, a kernel compiled after EmulatedPrelude(), for every thread of the grid. `library`
// is the handle of the shared object that has it; `arguments` are its parameters, 8 bytes each.
// INTERNAL where threads wait for others that never come, or shared memory is written past its end.
absl::Status LaunchEmulated(void* library, void* entry, const std::vector<int64_t>& arguments,
                            int64_t blocks, int64_t threads, int64_t shared_bytes);

}  // namespace kiln::codegen
