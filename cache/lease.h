// A promise among servers that share a tier: who holds the lease of a key compiles it, the others
// wait for the entry.
#pragma once

#include "absl/time/time.h"
#include "cache/store.h"

namespace kiln::cache {

enum class LeaseOutcome { kHeld, kBusy, kUnavailable };

// Thread-safe. Never fails: a tier that cannot be reached answers kUnavailable, and callers go on
// as if they were alone.
class Leases {
 public:
  virtual ~Leases() = default;

  // kHeld where this server has it now, until `ttl` passes or Release; kBusy where another has it.
  virtual LeaseOutcome Acquire(const Key& key, absl::Duration ttl) = 0;
  // False where it is not ours any more.
  virtual bool Renew(const Key& key, absl::Duration ttl) = 0;
  // Does nothing where it is not ours. Takes effect after what this server put before it is in the
  // tier (or given up), so that whoever holds the lease next finds the entry.
  virtual void Release(const Key& key) = 0;
};

}  // namespace kiln::cache
