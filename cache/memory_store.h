// The fast tier: entries in memory, the least recently used dropped when they pass a limit.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/store.h"

namespace kiln::cache {

// Counts keys and values against `max_bytes`; refuses a value that alone is larger with
// RESOURCE_EXHAUSTED. Never blocks on I/O. Tier "memory".
std::unique_ptr<Store> MakeMemoryStore(int64_t max_bytes);

}  // namespace kiln::cache
