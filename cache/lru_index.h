// Sizes and order of use of a bounded set of keys; holds no values.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/synchronization/mutex.h"
#include "cache/store.h"

namespace kiln::cache {

// Takes 56 bytes an entry and 6 to 12 for its place in the hash table: about 650 MB for 10 million.
// Pinned entries stand in an order of their own, after all others. Not thread-safe: its store's
// lock guards it.
class LruIndex {
 public:
  LruIndex();

  // Makes room in the hash table at once, where the count is known.
  void Reserve(int64_t entries) { by_key_.reserve(static_cast<size_t>(entries)); }
  // Adds or replaces `info.key` as the most recently used.
  void Insert(const EntryInfo& info);
  // The same, quicker. REQUIRES: !Contains(info.key).
  void InsertNew(const EntryInfo& info);
  // Makes the key the most recently used; no effect where it is absent.
  void Touch(const Key& key, int64_t now_unix_ms);
  // As the most recently used of its order; no effect where it is absent.
  void SetPinned(const Key& key, bool pinned);
  std::optional<EntryInfo> Find(const Key& key) const;
  // False where the key is absent.
  bool Erase(const Key& key);
  bool Contains(const Key& key) const { return by_key_.contains(key); }

  // The least recently used entries that must go so that `extra_bytes` more fit into `max_bytes`,
  // leaving out `keep` and what is pinned.
  std::vector<EntryInfo> Victims(int64_t extra_bytes, int64_t max_bytes, const Key& keep) const;
  // Calls `visit` for what is not pinned, least recently used first, until it returns false.
  void VisitOldest(const std::function<bool(const EntryInfo&)>& visit) const;

  // Orders everything by its time of last use.
  void SortByLastUse();

  // Adds the entries in the next `count` places from `place` on, in no order, and returns where to
  // go on; kEnd after the last. An entry keeps its place however it is used.
  static constexpr uint32_t kEnd = UINT32_MAX;
  uint32_t ReadPlaces(uint32_t place, uint32_t count, std::vector<EntryInfo>& out) const;

  int64_t size_bytes(EntryKind kind) const { return totals_[IndexOf(kind)].size_bytes; }
  int64_t entries(EntryKind kind) const { return totals_[IndexOf(kind)].entries; }
  int64_t size_bytes() const;
  int64_t pinned_bytes() const { return pinned_bytes_; }
  // Of entries in files of their own.
  int64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    Digest digest;
    uint64_t size_bytes : 48;
    uint64_t kind : 8;  // 0: free
    uint64_t pinned : 1;
    uint64_t own_file : 1;
    uint64_t last_used_unix_ms;
    uint32_t older;
    uint32_t newer;  // of a free slot: the next free one
  };
  // Grows by chunks, so that growing copies nothing.
  struct Slots {
    Slot& operator[](uint32_t place) const { return chunks[place / kChunk][place % kChunk]; }
    static constexpr uint32_t kChunk = 16384;
    std::vector<std::unique_ptr<Slot[]>> chunks;
    uint32_t used = 0;
  };
  struct HashPlace {
    using is_transparent = void;
    size_t operator()(const Key& key) const { return absl::Hash<Key>()(key); }
    size_t operator()(uint32_t place) const;
    const Slots* slots;
  };
  struct EqualPlace {
    using is_transparent = void;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t place, const Key& key) const;
    bool operator()(const Key& key, uint32_t place) const { return (*this)(place, key); }
    const Slots* slots;
  };
  struct Order {
    uint32_t oldest;
    uint32_t newest;
  };
  struct Total {
    int64_t entries = 0;
    int64_t size_bytes = 0;
  };
  // Kinds are numbered from 1.
  static size_t IndexOf(EntryKind kind) { return static_cast<size_t>(kind) - 1; }
  static Key KeyOf(const Slot& slot) { return {static_cast<EntryKind>(slot.kind), slot.digest}; }
  static EntryInfo InfoOf(const Slot& slot);
  uint32_t NewPlace();
  void Append(uint32_t place);
  void Unlink(uint32_t place);
  void Count(const Slot& slot, int sign);

  std::unique_ptr<Slots> slots_;  // apart, so that by_key_ still finds it after a move
  absl::flat_hash_set<uint32_t, HashPlace, EqualPlace> by_key_;
  uint32_t free_;
  Order orders_[2];  // of what is not pinned, of what is
  Total totals_[std::size(kEntryKinds)];
  int64_t pinned_bytes_ = 0;
  int64_t file_bytes_ = 0;
};

// The rows that Store::Usages wants.
std::vector<Usage> UsagesOf(const LruIndex& index, absl::string_view tier);

// Store::ForEach over an index that `mu` guards: a few entries at a time are copied under the lock,
// and `visit` is called without it.
void VisitEntries(absl::Mutex& mu, const LruIndex& index,
                  const std::function<void(const EntryInfo&)>& visit);

}  // namespace kiln::cache
