// A store whose next answers the test sets, to see what wrappers make of them.
#pragma once

#include <map>
#include <utility>

#include "cache/store.h"

namespace kiln::cache {

// Not thread-safe. Keeps entries in a map; where `get_error` or `put_error` is set, fails with it.
class FakeStore final : public Store {
 public:
  absl::StatusOr<Found> Get(const Key& key) override {
    ++gets;
    if (!get_error.ok()) return get_error;
    auto it = entries.find({key.kind, key.digest});
    if (it == entries.end()) return absl::NotFoundError("absent");
    return Found{it->second, "fake"};
  }
  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    ++batches;
    return GetEach(*this, keys);
  }
  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    if (!put_error.ok()) return put_error;
    entries[{key.kind, key.digest}] = entry;
    return absl::OkStatus();
  }
  absl::Status Remove(const Key& key) override {
    ++removes;
    entries.erase({key.kind, key.digest});
    return absl::OkStatus();
  }
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    for (const auto& [key, entry] : entries) {
      visit({{key.first, key.second}, static_cast<int64_t>(entry->bytes.size()), 0});
    }
  }
  std::vector<Usage> Usages() override {
    Usage usage{"fake", EntryKind::kArtifact, static_cast<int64_t>(entries.size()), 0};
    return {usage};
  }

  std::map<std::pair<EntryKind, Digest>, EntryPtr> entries;
  absl::Status get_error;
  absl::Status put_error;
  int gets = 0;
  int batches = 0;
  int removes = 0;
};

}  // namespace kiln::cache
