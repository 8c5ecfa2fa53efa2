#include "cache/store.h"

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

VerifyResult VerifyAll(Store& store) {
  // Least recently used first, so that reading them all leaves their order as it was.
  std::vector<Key> keys;
  store.ForEach([&](const EntryInfo& info) { keys.push_back(info.key); });
  VerifyResult result;
  for (const Key& key : keys) {
    absl::Status status = store.Get(key).status();
    if (absl::IsNotFound(status)) continue;  // evicted meanwhile
    ++result.checked;
    if (absl::IsDataLoss(status)) ++result.corrupt;
  }
  return result;
}

}  // namespace kiln::cache
