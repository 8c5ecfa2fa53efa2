#include "cache/store.h"

#include <algorithm>

#include "proto/base/status_macros.h"

namespace kiln::cache {

absl::string_view EntryKindName(EntryKind kind) {
  switch (kind) {
    case EntryKind::kArtifact:
      return "artifact";
    case EntryKind::kKernel:
      return "kernel";
    case EntryKind::kDescription:
      return "description";
    case EntryKind::kChoice:
      return "choice";
  }
  return "unknown";
}

EntryPtr MakeEntry(std::string bytes) {
  auto entry = std::make_shared<Entry>();
  entry->digest = Sha256(bytes);
  entry->bytes = std::move(bytes);
  return entry;
}

std::vector<absl::StatusOr<Found>> GetEach(Store& store, absl::Span<const Key> keys) {
  std::vector<absl::StatusOr<Found>> found;
  found.reserve(keys.size());
  for (const Key& key : keys) found.push_back(store.Get(key));
  return found;
}

absl::StatusOr<int64_t> Clear(Store& store, EntryKind kind) {
  std::vector<Key> keys;
  store.ForEach([&](const EntryInfo& info) {
    if (info.key.kind == kind) keys.push_back(info.key);
  });
  for (const Key& key : keys) KILN_RETURN_IF_ERROR(store.Remove(key));
  return static_cast<int64_t>(keys.size());
}

std::vector<EntryInfo> MostRecent(Store& store, absl::Span<const EntryKind> kinds, size_t limit) {
  struct Visited {
    EntryInfo info;
    int64_t number;
  };
  const auto later = [](const Visited& a, const Visited& b) {
    return std::pair(a.info.last_used_unix_ms, a.number) >
           std::pair(b.info.last_used_unix_ms, b.number);
  };
  std::vector<Visited> recent;  // a heap, its earliest first
  int64_t number = 0;
  store.ForEach([&](const EntryInfo& info) {
    if (std::find(kinds.begin(), kinds.end(), info.key.kind) == kinds.end()) return;
    recent.push_back({info, number++});
    std::push_heap(recent.begin(), recent.end(), later);
    if (recent.size() <= limit) return;
    std::pop_heap(recent.begin(), recent.end(), later);
    recent.pop_back();
  });
  std::sort_heap(recent.begin(), recent.end(), later);
  std::vector<EntryInfo> entries;
  entries.reserve(recent.size());
  for (const Visited& visited : recent) entries.push_back(visited.info);
  return entries;
}

void SortByUse(std::vector<EntryInfo>& entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const EntryInfo& a, const EntryInfo& b) {
    return std::pair(a.pinned, a.last_used_unix_ms) < std::pair(b.pinned, b.last_used_unix_ms);
  });
}

VerifyResult VerifyAll(Store& store, const std::function<bool()>& stopped) {
  std::vector<EntryInfo> entries;
  store.ForEach([&](const EntryInfo& info) { entries.push_back(info); });
  SortByUse(entries);
  VerifyResult result;
  for (const EntryInfo& info : entries) {
    if (stopped && stopped()) break;
    absl::Status status = store.Get(info.key).status();
    if (absl::IsNotFound(status)) continue;  // evicted meanwhile
    ++result.checked;
    if (absl::IsDataLoss(status)) ++result.corrupt;
  }
  return result;
}

}  // namespace kiln::cache
