#include "compiler/schedule/ptx/warp_machine.h"

#include <array>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"

namespace kiln::schedule::ptx {

// By the vendor's data sheets a multiprocessor of sm_80 does 1024 multiply-adds a clock, one of
// sm_86 and sm_89 512, and one of an H100 is known to do 0.62 of its 2048 by mma.sync. cuBLAS is
// known to reach 0.8 to 0.9 of that, and kernels like products' 0.85 to 0.95 of its speed: the
// worse end is taken.
WarpMachine WarpMachineOf(const DeviceInfo& device) {
  constexpr int64_t kLarge = 228 << 10, kMiddle = 164 << 10, kSmall = 100 << 10;
  constexpr double kBySameInstructions = .85, kByOthers = .3, kUsualMegahertz = 1400;
  // Where a multiprocessor has so little shared memory and the architecture is sm_90 or later the
  // device is of those whose tensor cores have mma.sync alone.
  constexpr int64_t kSmallShared = 128 << 10;
  const double megahertz = device.clock_mhz > 0 ? device.clock_mhz : kUsualMegahertz;
  const auto shared = [&](int64_t otherwise) {
    return MemoryBytes(device, MemoryKind::kShared, otherwise);
  };
  if (device.arch == "sm_80") return {1024, shared(kMiddle), kBySameInstructions, megahertz};
  if (device.arch == "sm_90" && shared(kLarge) > kSmallShared) {
    return {1280, shared(kLarge), kByOthers, megahertz};
  }
  return {512, shared(kSmall), kBySameInstructions, megahertz};
}

int64_t MemoryBytes(const DeviceInfo& device, MemoryKind kind, int64_t otherwise) {
  for (const MemorySpace& space : device.memory_spaces) {
    if (space.kind == kind && space.bytes > 0) return space.bytes;
  }
  return otherwise;
}

bool MultipliesByWarps(const DeviceInfo& device) {
  constexpr std::array<absl::string_view, 4> kArchitectures = {"sm_80", "sm_86", "sm_89", "sm_90"};
  // For two shapes of products' tiles at least; all devices of these architectures have more.
  constexpr int64_t kLeastShared = 64 << 10;
  return absl::c_linear_search(kArchitectures, device.arch) &&
         WarpMachineOf(device).shared_bytes >= kLeastShared;
}

}  // namespace kiln::schedule::ptx
