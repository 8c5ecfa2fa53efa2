// What a target that predicts times says of a launch, for people.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::schedule {

// Fields are those of kiln.v1.LaunchPlan (proto/kiln/v1/artifact.proto).
struct LaunchPlan {
  std::string strategy;  // "AFE", "TLF" or "one kernel"
  std::string sizes;
  bool typical = true;
  int kernels = 1;
  int64_t l2_peak_bytes = 0, l2_bytes = 0;
  int64_t tiles = 1, tile = 0;
  int split_dimension = 0;
  std::string split_buffer;
  double predicted_seconds = 0, unfused_seconds = 0;
};

}  // namespace kiln::schedule
