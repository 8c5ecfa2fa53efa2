// The device that kernels are for, as the compiler reads it; a plain copy of what the client
// described.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

// The numbers are those of kiln.v1.MemorySpace.Kind.
enum class MemoryKind : uint8_t { kGlobal = 1, kL2 = 2, kShared = 3, kL1 = 4, kRegisters = 5 };

struct MemorySpace {
  MemoryKind kind;
  int64_t bytes = 0;             // 0: not known; the global one's never is
  int64_t bytes_per_second = 0;  // 0: not known
};

// The numbers are those of kiln.v1.BinaryKind.
enum class BinaryKind : uint8_t { kSharedObject = 1, kPtx = 2, kCubin = 3, kGcu = 4, kLoopIr = 5 };

struct BinaryFormat {
  BinaryKind kind;
  int version = 0;
};

struct DeviceInfo {
  std::string arch;                   // "znver4", "sm_90a"
  std::vector<std::string> features;  // sorted
  int64_t l1_bytes = 32 << 10;        // defaults stand in for unknown sizes
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 16 << 20;
  bool HasFeature(absl::string_view feature) const;

  // Empty or 0 where the client does not say.
  std::vector<MemorySpace> memory_spaces;
  int compute_units = 0;
  int registers = 0;  // of a compute unit, 32 bits each
  int vector_bits = 0;
  int clock_mhz = 0;
  std::vector<BinaryFormat> binary_formats;  // that the client can load

  // Which schedule to choose for a kernel, of those that the cost model ranks: 0, the best; another
  // where a client is to time several. Where there are no so many it is any of them.
  int rank = 0;
  // Whether no schedule may add in the order in which tasks come (kiln.v1.Graph.deterministic).
  bool deterministic = false;
};

}  // namespace kiln
