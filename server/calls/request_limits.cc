#include "server/calls/request_limits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

absl::Status CheckName(absl::string_view field, const std::string& name) {
  if (name.size() <= kMaxRequestNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " holds a name of ", name.size(), " bytes; expected at most ", kMaxRequestNameBytes));
}

absl::Status CheckCount(absl::string_view field, int count) {
  if (count <= kMaxDeviceParts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", count, " items; expected at most ", kMaxDeviceParts));
}

template <typename Names>
absl::Status CheckNames(absl::string_view field, const Names& names, int most) {
  if (names.size() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", names.size(), " names; expected at most ", most));
  }
  for (const std::string& name : names) KILN_RETURN_IF_ERROR(CheckName(field, name));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequestLimits(const v1::Device& device, const v1::CompileOptions& options) {
  KILN_RETURN_IF_ERROR(CheckName("device.arch", device.arch()));
  KILN_RETURN_IF_ERROR(CheckName("device.model_name", device.model_name()));
  KILN_RETURN_IF_ERROR(CheckName("device.driver_version", device.driver_version()));
  KILN_RETURN_IF_ERROR(CheckCount("device.memory_spaces", device.memory_spaces_size()));
  KILN_RETURN_IF_ERROR(CheckCount("device.binary_formats", device.binary_formats_size()));
  KILN_RETURN_IF_ERROR(CheckNames("device.features", device.features(), kMaxDeviceNames));
  KILN_RETURN_IF_ERROR(CheckNames("device.libraries", device.libraries(), kMaxDeviceNames));
  return CheckNames("options.disabled_passes", options.disabled_passes(), kMaxDisabledPasses);
}

}  // namespace kiln::server
