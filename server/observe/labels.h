// What metrics, logs and the page call things alike.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "kiln/v1/device.pb.h"

namespace kiln::server {

// "cpp", "ptx", "gcu", "unknown".
inline absl::string_view TargetLabel(int target) {
  switch (target) {
    case v1::TARGET_CPP:
      return "cpp";
    case v1::TARGET_PTX:
      return "ptx";
    case v1::TARGET_GCU:
      return "gcu";
    default:
      return "unknown";
  }
}

// Jobs of one tenant, at one moment.
struct TenantCounts {
  std::string tenant;
  int queued = 0;
  int running = 0;
};

}  // namespace kiln::server
