#include "proto/base/device_cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "kiln/v1/device.pb.h"
#include "proto/base/device_cpu_names.h"
#include "proto/base/key.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

TEST(DeviceCpu, DescribesThisMachine) {
  auto device = DescribeCpu("native", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ(device->target(), v1::TARGET_CPP);
  EXPECT_NE(FindCpuModel(device->arch()), nullptr) << device->arch();
  EXPECT_GE(device->processors(), 1);
  EXPECT_TRUE(std::is_sorted(device->features().begin(), device->features().end()));
  // Whatever x86-64 this runs on, its kernel lists the same extensions.
  EXPECT_EQ(std::binary_search(device->features().begin(), device->features().end(), "avx2"),
            __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(std::binary_search(device->features().begin(), device->features().end(), "avx512f"),
            __builtin_cpu_supports("avx512f") != 0);
}

TEST(DeviceCpu, EqualMachinesHaveEqualKeys) {
  EXPECT_EQ(DeviceFingerprint(*DescribeCpu("", 2)), DeviceFingerprint(*DescribeCpu("native", 2)));
  // A client's threads alter no code.
  EXPECT_EQ(DeviceFingerprint(*DescribeCpu("", 2)), DeviceFingerprint(*DescribeCpu("", 3)));
}

TEST(DeviceCpu, CodeForThisMachineRunsHere) {
  EXPECT_TRUE(CheckRunsOnHost(HostCpuName(), HostCpuFeatures()).ok());
  EXPECT_TRUE(CheckRunsOnHost("x86-64", {}).ok());
}

// What a tile register of zeros is stored as, of 16 rows of 64 bytes.
__attribute__((target("amx-tile"))) std::vector<uint8_t> TileOfZeros() {
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64};
    uint8_t rows[16] = {16};
  };
  static constexpr Shapes kShapes;
  std::vector<uint8_t> stored(16 * 64, 0xff);
  __builtin_ia32_tile_loadconfig(&kShapes);
  __builtin_ia32_tilezero(0);
  __builtin_ia32_tilestored64(0, stored.data(), 64);
  __builtin_ia32_tilerelease();
  return stored;
}

// The system ends a process that uses them without having asked.
TEST(DeviceCpu, TilesThatAreListedServeEveryThread) {
  const std::vector<std::string>& features = HostCpuFeatures();
  if (!std::binary_search(features.begin(), features.end(), "amx-tile")) {
    GTEST_SKIP() << "this CPU has no tiles (amx-tile), or its system lends none";
  }
  const std::vector<uint8_t> zeros(16 * 64);
  EXPECT_EQ(TileOfZeros(), zeros);
  std::thread([&] { EXPECT_EQ(TileOfZeros(), zeros); }).join();
}

TEST(DeviceCpu, NamesWhatIsMissing) {
  EXPECT_THAT(CheckRunsOnHost("x86-64", {"avx9000"}).message(), HasSubstr("avx9000"));
  EXPECT_THAT(CheckRunsOnHost("z80", {}).message(), HasSubstr("z80"));
  EXPECT_THAT(DescribeCpu("z80", 1).status().message(), HasSubstr("znver3"));
}

TEST(DeviceCpu, EveryKnownCpuHasASoundDescription) {
  for (const std::string& name : KnownCpuNames()) {
    auto device = DescribeCpu(name, 1);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->arch(), name);
    const CpuModel* model = FindCpuModel(name);
    if (!model->parent.empty()) {
      ASSERT_NE(FindCpuModel(model->parent), nullptr) << name;
      std::vector<std::string> own = ExtensionsOf(*model);
      std::vector<std::string> parents = ExtensionsOf(*FindCpuModel(model->parent));
      EXPECT_TRUE(std::includes(own.begin(), own.end(), parents.begin(), parents.end())) << name;
    }
  }
}

TEST(DeviceCpu, KnowsCpusByTheirNumbers) {
  auto name = [](CpuVendor vendor, int family, int model, int stepping) {
    const CpuModel* found = CpuModelById(vendor, family, model, stepping);
    return found == nullptr ? std::string() : std::string(found->name);
  };
  EXPECT_EQ(name(CpuVendor::kAmd, 0x17, 0x31, 0), "znver2");
  EXPECT_EQ(name(CpuVendor::kAmd, 0x19, 0x01, 1), "znver3");
  EXPECT_EQ(name(CpuVendor::kAmd, 0x19, 0x11, 1), "znver4");
  EXPECT_EQ(name(CpuVendor::kAmd, 0x1a, 0x02, 1), "znver5");
  EXPECT_EQ(name(CpuVendor::kIntel, 6, 0x55, 4), "skylake-avx512");
  EXPECT_EQ(name(CpuVendor::kIntel, 6, 0x55, 7), "cascadelake");
  EXPECT_EQ(name(CpuVendor::kIntel, 6, 0x6a, 6), "icelake-server");
  EXPECT_EQ(name(CpuVendor::kIntel, 6, 0x8f, 8), "sapphirerapids");
  EXPECT_EQ(name(CpuVendor::kIntel, 15, 4, 1), "");
  EXPECT_EQ(name(CpuVendor::kAny, 6, 0x55, 7), "");
}

}  // namespace
}  // namespace kiln
