// Runs the launches of a program for a GCU on the device that libgcu_runtime.so has.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/runtime/archive.h"
#include "client/runtime/cpu/executor.h"
#include "client/runtime/gcu/runtime.h"

namespace kiln::gcu {

// Loads all kernels of the archive, which gives Kernel::function its meaning. With $KILN_GCU_REPORT
// each launch appends a line of JSON to that file; with $KILN_GCU_TRACE, as it was when the runtime
// was loaded, the end of each run writes a Chrome trace there of what the process has launched
// since the last one. DATA_LOSS where a kernel's arguments are not what its interface states.
absl::StatusOr<std::unique_ptr<const runtime::Accelerator>> MakeAccelerator(
    const Runtime& runtime, const runtime::Archive& archive);

}  // namespace kiln::gcu
