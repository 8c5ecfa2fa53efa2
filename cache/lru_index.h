// Sizes and order of use of a bounded set of keys; holds no values.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cache/store.h"

namespace kiln::cache {

// Not thread-safe: its store's lock guards it.
class LruIndex {
 public:
  // Adds or replaces `info.key` as the most recently used.
  void Insert(const EntryInfo& info);
  // Makes the key the most recently used; no effect where it is absent.
  void Touch(const Key& key, int64_t now_unix_ms);
  std::optional<EntryInfo> Find(const Key& key) const;
  // False where the key is absent.
  bool Erase(const Key& key);
  bool Contains(const Key& key) const { return places_.contains(key); }

  // The least recently used entries that must go so that `extra_bytes` more fit into `max_bytes`,
  // leaving out `keep`.
  std::vector<EntryInfo> Victims(int64_t extra_bytes, int64_t max_bytes, const Key& keep) const;

  // Least recently used first.
  std::vector<EntryInfo> List() const { return {order_.begin(), order_.end()}; }
  int64_t size_bytes(EntryKind kind) const { return totals_[Index(kind)].size_bytes; }
  int64_t entries(EntryKind kind) const { return totals_[Index(kind)].entries; }
  int64_t size_bytes() const;

 private:
  struct Total {
    int64_t entries = 0;
    int64_t size_bytes = 0;
  };
  static int Index(EntryKind kind) { return kind == EntryKind::kArtifact ? 0 : 1; }

  std::list<EntryInfo> order_;  // front: least recently used
  absl::flat_hash_map<Key, std::list<EntryInfo>::iterator> places_;
  Total totals_[2];
};

// The rows that Store::Usages wants.
std::vector<Usage> UsagesOf(const LruIndex& index, absl::string_view tier);

}  // namespace kiln::cache
