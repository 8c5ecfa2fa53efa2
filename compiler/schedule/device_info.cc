#include "compiler/schedule/device_info.h"

#include "absl/algorithm/container.h"

namespace kiln {

bool DeviceInfo::HasFeature(absl::string_view feature) const {
  return absl::c_binary_search(features, feature,
                               [](absl::string_view a, absl::string_view b) { return a < b; });
}

}  // namespace kiln
