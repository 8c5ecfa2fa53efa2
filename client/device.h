// The device that a client compiles for: the one list of targets that clients can name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Device;
}

// `target`: "cpp", ...; empty: cpp. `arch`: of the target; empty or "native": this machine's.
// `threads`: that programs will run on; 0: one a physical core. INVALID_ARGUMENT for a name that
// this client does not know, with those that it does; FAILED_PRECONDITION where "native" is a
// device that this machine does not have.
absl::StatusOr<v1::Device> DescribeDevice(absl::string_view target, absl::string_view arch,
                                          int threads);

// Names that DescribeDevice takes.
std::vector<absl::string_view> KnownTargets();

}  // namespace kiln
