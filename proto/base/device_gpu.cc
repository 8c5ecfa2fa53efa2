#include "proto/base/device_gpu.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_memory.h"

namespace kiln {
namespace {

// Figures as the driver reports them; L1 as the tuning guides of the architectures have it.
struct KnownGpu {
  const char* arch;
  int compute_units;
  int clock_mhz;
  int64_t bytes_per_second;
  int64_t l2_bytes;
  int64_t shared_bytes;
  int64_t l1_bytes;
};
constexpr int kRegisters = 65536;
constexpr KnownGpu kGpus[] = {
    {"sm_80", 108, 1410, 1555200000000, 40 << 20, 164 << 10, 192 << 10},
    {"sm_86", 72, 1695, 600096000000, 6 << 20, 100 << 10, 128 << 10},
    {"sm_89", 142, 2520, 864096000000, 96 << 20, 100 << 10, 128 << 10},
    {"sm_90", 132, 1980, 3352320000000, 50 << 20, 228 << 10, 256 << 10},
    {"sm_90a", 132, 1980, 3352320000000, 50 << 20, 228 << 10, 256 << 10},
};

// 90 for "sm_90" and "sm_90a"; 0 for a name of another form.
int NumberOf(absl::string_view arch, bool& exact) {
  int number = 0;
  if (!absl::ConsumePrefix(&arch, "sm_")) return 0;
  exact = absl::ConsumeSuffix(&arch, "a");
  return absl::SimpleAtoi(arch, &number) && number > 0 ? number : 0;
}

}  // namespace

absl::StatusOr<v1::Device> DescribeGpu(absl::string_view arch) {
  for (const KnownGpu& gpu : kGpus) {
    if (arch != gpu.arch) continue;
    v1::Device device;
    device.set_target(v1::TARGET_PTX);
    device.set_arch(gpu.arch);
    AddMemory(device, v1::MemorySpace::KIND_GLOBAL, 0, gpu.bytes_per_second);
    AddMemory(device, v1::MemorySpace::KIND_L2, gpu.l2_bytes, 0);
    AddMemory(device, v1::MemorySpace::KIND_SHARED, gpu.shared_bytes, 0);
    AddMemory(device, v1::MemorySpace::KIND_L1, gpu.l1_bytes, 0);
    AddMemory(device, v1::MemorySpace::KIND_REGISTERS, kRegisters * 4, 0);
    device.set_compute_units(gpu.compute_units);
    device.set_registers(kRegisters);
    device.set_clock_mhz(gpu.clock_mhz);
    for (const v1::BinaryKind kind : {v1::BINARY_KIND_PTX, v1::BINARY_KIND_CUBIN}) {
      v1::BinaryFormat& format = *device.add_binary_formats();
      format.set_kind(kind);
      if (kind == v1::BINARY_KIND_PTX) format.set_version(kPtxVersion);
    }
    return device;
  }
  return absl::InvalidArgumentError(absl::StrCat("target ptx has no architecture '", arch,
                                                 "'; known are native, ",
                                                 absl::StrJoin(KnownGpuNames(), ", ")));
}

std::vector<std::string> KnownGpuNames() {
  std::vector<std::string> names;
  for (const KnownGpu& gpu : kGpus) names.emplace_back(gpu.arch);
  return names;
}

std::string GpuNameOfCapability(int major, int minor) {
  std::string name;
  for (const KnownGpu& gpu : kGpus) {
    if (RunsOnCapability(gpu.arch, major, minor)) name = gpu.arch;
  }
  return name;
}

bool RunsOnCapability(absl::string_view arch, int major, int minor) {
  bool exact = false;
  const int number = NumberOf(arch, exact);
  const int capability = 10 * major + minor;
  return number > 0 && (exact ? number == capability : number <= capability);
}

}  // namespace kiln
