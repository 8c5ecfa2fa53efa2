// What flags, labels, logs and the page call the values of kiln.v1.Target: "cpp" for TARGET_CPP.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

// "unknown" for TARGET_UNSPECIFIED and for a number that this build has no target for. Lives as
// long as the process.
absl::string_view TargetName(int target);

// TARGET_UNSPECIFIED for what is no target's name.
int TargetNumber(absl::string_view name);

// Every target's, in order of their numbers: built into some server or not.
std::vector<absl::string_view> TargetNames();

}  // namespace kiln
