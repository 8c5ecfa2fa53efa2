// NVIDIA GPUs by the name of their architecture, described for the compiler.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Device;
}

// The version of PTX that clients say they load, as BinaryFormat counts. Every driver that a client
// takes reads it; newer ones say no more, so that a driver's update changes no key.
inline constexpr int kPtxVersion = 80;

// A device of the architecture, "sm_80", "sm_86", "sm_89", "sm_90" or "sm_90a", with the figures of
// its most usual model: A100, A10, L40S, H100 (SXM). INVALID_ARGUMENT for another name.
absl::StatusOr<v1::Device> DescribeGpu(absl::string_view arch);

std::vector<std::string> KnownGpuNames();

// The architecture to compile for, for a device of that compute capability: the newest known one
// whose code it runs. Empty where there is none.
std::string GpuNameOfCapability(int major, int minor);

// Whether code for `arch`, of the form "sm_90" or "sm_90a" (which no other capability runs), runs
// on a device of that capability. Any number will do; false for a name of another form.
bool RunsOnCapability(absl::string_view arch, int major, int minor);

}  // namespace kiln
