// Reads NumPy's .npz archives: zip files of .npy arrays, stored or deflated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/random_inputs.h"

namespace kiln::cli {

struct NpzArray {
  std::string name;  // without ".npy"
  HostTensor tensor;
};

// INVALID_ARGUMENT, with the array where one is at fault, for anything but a sound archive of
// little-endian arrays of known types; two raw bytes ("V2") are bfloat16. Zip64 and encrypted
// archives are refused.
absl::StatusOr<std::vector<NpzArray>> ParseNpz(absl::string_view data);
// One .npy file.
absl::StatusOr<HostTensor> ParseNpy(absl::string_view data);

}  // namespace kiln::cli
