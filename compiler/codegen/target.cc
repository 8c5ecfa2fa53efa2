#include "compiler/codegen/target.h"

#include <algorithm>

namespace kiln::codegen {

bool DeviceInfo::HasFeature(absl::string_view feature) const {
  return std::binary_search(features.begin(), features.end(), feature);
}

}  // namespace kiln::codegen
