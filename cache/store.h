// A store of immutable values under content keys. Behaviour is added by wrapping: a store that
// verifies digests, one that counts, one that puts a fast tier over a slow one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/digest.h"

namespace kiln::cache {

// The numbers are part of the on-disk format (FORMAT.md).
enum class EntryKind : uint8_t {
  kArtifact = 1,
  kKernel = 2,
  kDescription = 3,  // what the artifact's key of the same digest was made of
  kChoice = 4,       // which of some kernels a client found to be the fastest
};
inline constexpr EntryKind kEntryKinds[] = {EntryKind::kArtifact, EntryKind::kKernel,
                                            EntryKind::kDescription, EntryKind::kChoice};

// "artifact", "kernel", "description", "choice": metric labels and wire names.
absl::string_view EntryKindName(EntryKind kind);

struct Key {
  EntryKind kind = EntryKind::kArtifact;
  Digest digest;

  friend bool operator==(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Key& k) {
    return H::combine(std::move(h), k.kind, k.digest);
  }
};

// A value with the SHA-256 that it had when it was first put. Never changed after it is made, and
// shared by everyone who reads it.
struct Entry {
  std::string bytes;
  Digest digest;
};
using EntryPtr = std::shared_ptr<const Entry>;

// Computes the digest.
EntryPtr MakeEntry(std::string bytes);

struct Found {
  EntryPtr entry;
  absl::string_view tier;  // "memory", "disk": a string literal
};

struct EntryInfo {
  Key key;
  int64_t size_bytes = 0;
  int64_t last_used_unix_ms = 0;
  bool pinned = false;    // never evicted
  bool own_file = false;  // in a file of its own, not in the database
};

struct Usage {
  absl::string_view tier;
  EntryKind kind = EntryKind::kArtifact;
  int64_t entries = 0;
  int64_t size_bytes = 0;
  int64_t evicted = 0;  // entries that went since the start to make room
  int64_t expired = 0;  // entries that went since the start because nobody read them for too long
};

// Thread-safe. Every method may touch a disk, a memory store aside.
class Store {
 public:
  virtual ~Store() = default;

  // NOT_FOUND where there is none; DATA_LOSS where the entry was damaged; PERMISSION_DENIED for one
  // that is whole but of a signer that is not trusted. Callers treat every error
  // as a miss.
  virtual absl::StatusOr<Found> Get(const Key& key) = 0;

  // A result for each key, as Get has it. A store beyond a network asks for all of them at once.
  virtual std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) = 0;

  // Atomic: a reader sees the whole entry or none. An error (no room, disk full) leaves every other
  // entry readable.
  virtual absl::Status Put(const Key& key, const EntryPtr& entry) = 0;

  // OK where there is none.
  virtual absl::Status Remove(const Key& key) = 0;

  // Calls `visit` for every entry, in no order, without holding a lock. No entry is missed for
  // being read meanwhile; those that are put or removed meanwhile may be left out or come twice.
  virtual void ForEach(const std::function<void(const EntryInfo&)>& visit) = 0;

  // One row for each tier and kind; reads no disk.
  virtual std::vector<Usage> Usages() = 0;
};

// A store that can be told to keep what it has.
class PinningStore : public Store {
 public:
  // A pinned entry is never evicted; it can still be removed or found damaged. NOT_FOUND where
  // there is no such entry; RESOURCE_EXHAUSTED where more would be pinned than the store allows.
  virtual absl::Status SetPinned(const Key& key, bool pinned) = 0;
};

// GetMany of a store that asks nobody else: one Get after the other.
std::vector<absl::StatusOr<Found>> GetEach(Store& store, absl::Span<const Key> keys);

// Removes the entries of one kind; returns how many there were.
absl::StatusOr<int64_t> Clear(Store& store, EntryKind kind);

// The entries of one of `kinds` that were used last, `limit` at most, the last one first. A disk
// tier knows the time of use to within an hour; of entries of one time the last that ForEach has
// comes first.
std::vector<EntryInfo> MostRecent(Store& store, absl::Span<const EntryKind> kinds, size_t limit);

struct VerifyResult {
  int64_t checked = 0;
  int64_t corrupt = 0;
};
// Reads every entry of a store that verifies (verifying_store.h), which removes what is damaged;
// ends early once `stopped` says so.
VerifyResult VerifyAll(Store& store, const std::function<bool()>& stopped = nullptr);
// Least recently used first, pinned ones last: reading them in this order leaves it as it was.
void SortByUse(std::vector<EntryInfo>& entries);

}  // namespace kiln::cache
