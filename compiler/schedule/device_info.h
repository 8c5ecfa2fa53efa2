// The device that kernels are for, as the compiler reads it; a plain copy of what the client
// described.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

struct DeviceInfo {
  std::string arch;                   // LLVM CPU name
  std::vector<std::string> features;  // sorted
  int64_t l1_bytes = 32 << 10;        // defaults stand in for unknown sizes
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 16 << 20;
  bool HasFeature(absl::string_view feature) const;
};

}  // namespace kiln
