// The durable tier: entries in RocksDB, bounded in bytes. FORMAT.md describes what is on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache/store.h"

namespace kiln::cache {

struct RocksDbOptions {
  std::string path;  // made where missing; the caller holds the directory above it (data_dir.h)
  int64_t max_bytes = int64_t{20} << 30;  // keys and values; the least recently used go first
  // Free bytes of the file system; a write that would leave less than `min_free_bytes` is refused.
  // Empty asks the file system of `path`.
  std::function<int64_t()> free_bytes;
  int64_t min_free_bytes = int64_t{64} << 20;
};

// Opens or makes the store and counts what it holds. A database of another format version, or one
// too damaged to open, is renamed to "<path>.set-aside-<time>" with a warning, and an empty one
// takes its place. FAILED_PRECONDITION where the files cannot be made or read.
//
// Put: RESOURCE_EXHAUSTED for a value over a quarter of `max_bytes` or a full disk; reads go on.
// Last use is kept to the hour on disk and exactly in memory. Tier "disk".
absl::StatusOr<std::unique_ptr<Store>> OpenRocksDbStore(const RocksDbOptions& options);

}  // namespace kiln::cache
