#include "compiler/device_info.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "kiln/v1/device.pb.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;

DeviceInfo Read(const std::string& text) {
  v1::Device device;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &device));
  return ReadDevice(device);
}

TEST(DeviceInfo, FeaturesAreASortedSet) {
  const DeviceInfo device = Read("features: 'fma' features: 'avx' features: 'fma'");
  EXPECT_THAT(device.features, ElementsAre("avx", "fma"));
  EXPECT_TRUE(device.HasFeature("fma"));
  EXPECT_FALSE(device.HasFeature("avx2"));
}

TEST(DeviceInfo, UnknownCachesHaveTypicalSizesAndTheRestStaysUnknown) {
  const DeviceInfo device = Read("l2_bytes: 5");
  EXPECT_EQ(device.l1_bytes, 32 << 10);
  EXPECT_EQ(device.l2_bytes, 5);
  EXPECT_TRUE(device.memory_spaces.empty());
  EXPECT_TRUE(device.binary_formats.empty());
  EXPECT_EQ(device.compute_units, 0);
}

TEST(DeviceInfo, TakesWhatOtherDevicesSay) {
  const DeviceInfo device = Read(R"pb(
    memory_spaces { kind: KIND_GLOBAL bytes_per_second: 4800 }
    memory_spaces { kind: KIND_SHARED bytes: 233472 }
    compute_units: 132
    registers: 65536
    vector_bits: 1024
    clock_mhz: 1980
    binary_formats { kind: BINARY_KIND_PTX version: 84 }
  )pb");
  ASSERT_EQ(device.memory_spaces.size(), 2u);
  EXPECT_EQ(device.memory_spaces[0].kind, MemoryKind::kGlobal);
  EXPECT_EQ(device.memory_spaces[0].bytes_per_second, 4800);
  EXPECT_EQ(device.memory_spaces[1].kind, MemoryKind::kShared);
  EXPECT_EQ(device.memory_spaces[1].bytes, 233472);
  EXPECT_EQ(device.compute_units, 132);
  EXPECT_EQ(device.registers, 65536);
  EXPECT_EQ(device.vector_bits, 1024);
  EXPECT_EQ(device.clock_mhz, 1980);
  ASSERT_EQ(device.binary_formats.size(), 1u);
  EXPECT_EQ(device.binary_formats[0].kind, BinaryKind::kPtx);
  EXPECT_EQ(device.binary_formats[0].version, 84);
}

TEST(DeviceInfo, KindsOfANewerClientAreLeftOut) {
  v1::Device device;
  device.add_memory_spaces()->set_bytes(1);
  device.add_memory_spaces()->set_kind(static_cast<v1::MemorySpace::Kind>(99));
  device.add_binary_formats()->set_kind(static_cast<v1::BinaryKind>(99));
  const DeviceInfo info = ReadDevice(device);
  EXPECT_TRUE(info.memory_spaces.empty());
  EXPECT_TRUE(info.binary_formats.empty());
}

}  // namespace
}  // namespace kiln
