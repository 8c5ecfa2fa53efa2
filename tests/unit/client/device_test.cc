#include "client/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/device.pb.h"
#include "proto/base/key.h"
#include "proto/base/target_name.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

TEST(Device, EveryKnownTargetDescribesThisMachine) {
  for (absl::string_view target : KnownTargets()) {
    for (const char* arch : {"", "native"}) {
      auto device = DescribeDevice(target, arch, 3);
      if (target == "ptx" && absl::IsFailedPrecondition(device.status())) continue;  // no GPU here
      ASSERT_TRUE(device.ok()) << target << " " << device.status();
      EXPECT_EQ(TargetName(device->target()), target);
      EXPECT_FALSE(device->arch().empty());
      EXPECT_EQ(device->processors(), 3);
    }
  }
}

TEST(Device, TheTargetIsCppUnlessSaid) {
  EXPECT_EQ(DeviceFingerprint(*DescribeDevice("", "", 1)),
            DeviceFingerprint(*DescribeDevice("cpp", "native", 1)));
  EXPECT_EQ(DescribeDevice("", "x86-64-v3", 1)->arch(), "x86-64-v3");
}

TEST(Device, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* target : {"tpu", "unknown", "CPP"}) {
    const absl::Status status = DescribeDevice(target, "", 1).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << target;
    EXPECT_THAT(std::string(status.message()), HasSubstr("known are cpp, ptx, gcu, null"))
        << target;
  }
  EXPECT_THAT(std::string(DescribeDevice("null", "znver4", 1).status().message()),
              HasSubstr("no architecture 'znver4'"));
}

}  // namespace
}  // namespace kiln
