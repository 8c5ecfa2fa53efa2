#include "compiler/device_info.h"

#include <algorithm>

#include "kiln/v1/device.pb.h"

namespace kiln {
namespace {

static_assert(static_cast<int>(MemoryKind::kGlobal) == v1::MemorySpace::KIND_GLOBAL);
static_assert(static_cast<int>(MemoryKind::kL2) == v1::MemorySpace::KIND_L2);
static_assert(static_cast<int>(MemoryKind::kShared) == v1::MemorySpace::KIND_SHARED);
static_assert(static_cast<int>(MemoryKind::kL1) == v1::MemorySpace::KIND_L1);
static_assert(static_cast<int>(MemoryKind::kRegisters) == v1::MemorySpace::KIND_REGISTERS);
static_assert(static_cast<int>(BinaryKind::kSharedObject) == v1::BINARY_KIND_SHARED_OBJECT);
static_assert(static_cast<int>(BinaryKind::kPtx) == v1::BINARY_KIND_PTX);
static_assert(static_cast<int>(BinaryKind::kCubin) == v1::BINARY_KIND_CUBIN);
static_assert(static_cast<int>(BinaryKind::kGcu) == v1::BINARY_KIND_GCU);
static_assert(static_cast<int>(BinaryKind::kLoopIr) == v1::BINARY_KIND_LOOP_IR);

}  // namespace

DeviceInfo ReadDevice(const v1::Device& device) {
  DeviceInfo info;
  info.arch = device.arch();
  info.features.assign(device.features().begin(), device.features().end());
  std::sort(info.features.begin(), info.features.end());
  info.features.erase(std::unique(info.features.begin(), info.features.end()), info.features.end());
  if (device.l1_bytes() > 0) info.l1_bytes = device.l1_bytes();
  if (device.l2_bytes() > 0) info.l2_bytes = device.l2_bytes();
  if (device.l3_bytes() > 0) info.l3_bytes = device.l3_bytes();
  for (const v1::MemorySpace& space : device.memory_spaces()) {
    if (!v1::MemorySpace::Kind_IsValid(space.kind()) || space.kind() == 0) continue;
    info.memory_spaces.push_back({.kind = static_cast<MemoryKind>(space.kind()),
                                  .bytes = space.bytes(),
                                  .bytes_per_second = space.bytes_per_second()});
  }
  info.compute_units = device.compute_units();
  info.registers = device.registers();
  info.vector_bits = device.vector_bits();
  info.clock_mhz = device.clock_mhz();
  for (const v1::BinaryFormat& format : device.binary_formats()) {
    if (!v1::BinaryKind_IsValid(format.kind()) || format.kind() == 0) continue;
    info.binary_formats.push_back(
        {.kind = static_cast<BinaryKind>(format.kind()), .version = format.version()});
  }
  return info;
}

}  // namespace kiln
