#include "proto/base/device_gcu.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/device_cpu.h"
#include "proto/base/device_memory.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln {
namespace {

struct KnownGcu {
  const char* profile;
  int64_t l3_bytes, l3_rate, l2_bytes, l2_rate, l1_bytes;
  int cores;
  int64_t clock_hz;
};
constexpr KnownGcu kGcus[] = {
#define KILN_GCU_KNOWN(name, l3, l3_rate, l2, l2_rate, l1, cores, clock, f32, f16, i8, launch) \
  {name, l3, l3_rate, l2, l2_rate, l1, cores, clock},
    KILN_GCU_PROFILES(KILN_GCU_KNOWN)
#undef KILN_GCU_KNOWN
};

}  // namespace

absl::StatusOr<v1::Device> DescribeGcu(absl::string_view profile, int threads) {
  for (const KnownGcu& gcu : kGcus) {
    if (profile != gcu.profile) continue;
    v1::Device device;
    device.set_target(v1::TARGET_GCU);
    device.set_arch(gcu.profile);
    device.add_features(HostCpuLevel());
    device.set_processors(threads > 0 ? threads : PhysicalProcessors());
    AddMemory(device, v1::MemorySpace::KIND_GLOBAL, gcu.l3_bytes, gcu.l3_rate);
    AddMemory(device, v1::MemorySpace::KIND_L2, gcu.l2_bytes, gcu.l2_rate);
    AddMemory(device, v1::MemorySpace::KIND_L1, gcu.l1_bytes, 0);
    device.set_compute_units(gcu.cores);
    device.set_vector_bits(KILN_GCU_VECTOR_BYTES * 8);
    device.set_clock_mhz(static_cast<int>(gcu.clock_hz / 1'000'000));
    v1::BinaryFormat& format = *device.add_binary_formats();
    format.set_kind(v1::BINARY_KIND_GCU);
    format.set_version(1);
    return device;
  }
  return absl::InvalidArgumentError(absl::StrCat("target gcu has no architecture '", profile,
                                                 "'; known are native, ",
                                                 absl::StrJoin(KnownGcuNames(), ", ")));
}

std::vector<std::string> KnownGcuNames() {
  std::vector<std::string> names;
  for (const KnownGcu& gcu : kGcus) names.emplace_back(gcu.profile);
  return names;
}

}  // namespace kiln
