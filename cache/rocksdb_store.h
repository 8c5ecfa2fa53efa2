// The durable tier: entries on disk, bounded in bytes of the file system. FORMAT.md describes what
// is there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/store.h"

namespace kiln::cache {

inline constexpr int64_t kLeastCacheBytes = int64_t{32} << 20;

struct RocksDbOptions {
  std::string path;  // made where missing; the caller holds the directory above it (data_dir.h)
  // Of everything under `path` and of what was set aside beside it, as du(1) counts; never passed.
  // At least kLeastCacheBytes.
  int64_t max_bytes = int64_t{20} << 30;
  // Entries that nobody read for so long go, an eighth of it late at most.
  absl::Duration max_age = absl::InfiniteDuration();
  // Free bytes of the file system; a write that would leave less than `min_free_bytes` is refused.
  // Empty asks the file system of `path`.
  std::function<int64_t()> free_bytes;
  int64_t min_free_bytes = int64_t{64} << 20;
  std::function<absl::Time()> now = [] { return absl::Now(); };
  // Between looks at what is too old, what failed and what must be compacted.
  absl::Duration upkeep_period = absl::Seconds(1);
};

// The part of `max_bytes` that entries may take. The rest is for the database's logs, and for what
// it rewrites before it deletes the old.
int64_t EntryBudgetBytes(int64_t max_bytes);

// Opens or makes the store and counts what it holds. A cache of another format version, or one too
// damaged to open, is renamed to "<path>.set-aside-<time>" with a warning, and an empty one takes
// its place; what was set aside goes first when room is needed. FAILED_PRECONDITION where the files
// cannot be made or read, INVALID_ARGUMENT for a limit that is too small.
//
// Put: RESOURCE_EXHAUSTED for a value over a quarter of `max_bytes`, for a full disk, and where all
// that could go is pinned; UNAVAILABLE after a failed write, until one succeeds again. Reads go on.
// SetPinned: at most half of the budget.
// Last use is kept to the hour (an eighth of `max_age` where that is less), its order in memory
// exactly. Tier "disk".
absl::StatusOr<std::unique_ptr<PinningStore>> OpenRocksDbStore(const RocksDbOptions& options);

}  // namespace kiln::cache
