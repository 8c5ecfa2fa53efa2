// What is assumed of devices whose tensor cores kernels use by mma.sync.
#pragma once

#include <cstdint>

#include "compiler/schedule/device_info.h"

namespace kiln::schedule::ptx {

// Beside what a device says of itself. None was measured but an H100 with products by mma.sync:
// cuBLAS, which has sm_90a's own instructions there, took 0.45 to 0.6 of their time. An H100 gets
// sm_90a's code, and sm_90's newer devices, whose own instructions are about twice as fast by their
// data sheets.
struct WarpMachine {
  double multiply_adds;  // of mma.sync, of 16 bits into 32, in a clock of a multiprocessor
  int64_t shared_bytes;  // of a multiprocessor
  double library;        // time of its product in that of ours
  double megahertz;
};
WarpMachine WarpMachineOf(const DeviceInfo& device);

inline constexpr int64_t kSystemBytes = 1 << 10;  // of shared memory, for each block
inline constexpr int kRegisters = 65536;          // of a multiprocessor

// As the device says, or `otherwise`.
int64_t MemoryBytes(const DeviceInfo& device, MemoryKind kind, int64_t otherwise);

// Whether products and attention run so on that device.
bool MultipliesByWarps(const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
