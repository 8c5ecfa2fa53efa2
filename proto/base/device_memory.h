// A device's memories, as its description has them.
#pragma once

#include <cstdint>

#include "kiln/v1/device.pb.h"

namespace kiln {

// 0 where a figure is not known.
inline void AddMemory(v1::Device& device, v1::MemorySpace::Kind kind, int64_t bytes,
                      int64_t bytes_per_second) {
  v1::MemorySpace& space = *device.add_memory_spaces();
  space.set_kind(kind);
  space.set_bytes(bytes);
  space.set_bytes_per_second(bytes_per_second);
}

}  // namespace kiln
