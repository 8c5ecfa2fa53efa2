#include "server/calls/request_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kiln/v1/compile_service.pb.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const v1::Device& device, const v1::CompileOptions& options = {}) {
  absl::Status status = CheckRequestLimits(device, options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(RequestLimits, LetThroughWhatClientsSend) {
  v1::Device device;
  device.set_arch("znver4");
  for (int i = 0; i < kMaxDeviceNames; ++i) device.add_features("avx512f");
  device.add_libraries(std::string(kMaxRequestNameBytes, 'x'));
  v1::CompileOptions options;
  for (int i = 0; i < kMaxDisabledPasses; ++i) options.add_disabled_passes("fuse");
  EXPECT_TRUE(CheckRequestLimits(device, options).ok());
}

TEST(RequestLimits, NameTheFieldThatHoldsTooMuch) {
  const std::string long_name(kMaxRequestNameBytes + 1, 'x');
  v1::Device device;
  device.set_arch(long_name);
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.arch holds a name of 257 bytes"));
  device.Clear();
  device.set_model_name(long_name);
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.model_name"));
  device.Clear();
  device.add_libraries(long_name);
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.libraries"));
  device.Clear();
  for (int i = 0; i <= kMaxDeviceNames; ++i) device.add_features("a");
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.features has 1025 names"));
  device.Clear();
  device.set_driver_version(long_name);
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.driver_version"));
  device.Clear();
  for (int i = 0; i <= kMaxDeviceParts; ++i) device.add_memory_spaces();
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.memory_spaces has 65 items"));
  device.Clear();
  for (int i = 0; i <= kMaxDeviceParts; ++i) device.add_binary_formats();
  EXPECT_THAT(ErrorOf(device), HasSubstr("device.binary_formats has 65 items"));
  v1::CompileOptions options;
  for (int i = 0; i <= kMaxDisabledPasses; ++i) options.add_disabled_passes("a");
  EXPECT_THAT(ErrorOf({}, options), HasSubstr("options.disabled_passes has 65 names"));
}

}  // namespace
}  // namespace kiln::server
