// GCUs by the name of their profile, described for the compiler.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Device;
}

// A GCU of the profile ("gcu-16m") in this machine: its one feature is the host's level, for what
// runs on the host. `threads` 0: PhysicalProcessors(). INVALID_ARGUMENT for another name.
absl::StatusOr<v1::Device> DescribeGcu(absl::string_view profile, int threads);

std::vector<std::string> KnownGcuNames();

}  // namespace kiln
