#include "cache/lru_index.h"

namespace kiln::cache {

void LruIndex::Insert(const EntryInfo& info) {
  Erase(info.key);
  places_[info.key] = order_.insert(order_.end(), info);
  Total& total = totals_[Index(info.key.kind)];
  ++total.entries;
  total.size_bytes += info.size_bytes;
}

void LruIndex::Touch(const Key& key, int64_t now_unix_ms) {
  auto it = places_.find(key);
  if (it == places_.end()) return;
  it->second->last_used_unix_ms = now_unix_ms;
  order_.splice(order_.end(), order_, it->second);
}

std::optional<EntryInfo> LruIndex::Find(const Key& key) const {
  auto it = places_.find(key);
  if (it == places_.end()) return std::nullopt;
  return *it->second;
}

bool LruIndex::Erase(const Key& key) {
  auto it = places_.find(key);
  if (it == places_.end()) return false;
  Total& total = totals_[Index(key.kind)];
  --total.entries;
  total.size_bytes -= it->second->size_bytes;
  order_.erase(it->second);
  places_.erase(it);
  return true;
}

std::vector<EntryInfo> LruIndex::Victims(int64_t extra_bytes, int64_t max_bytes,
                                         const Key& keep) const {
  std::vector<EntryInfo> victims;
  int64_t total_bytes = size_bytes() + extra_bytes;
  for (const EntryInfo& info : order_) {
    if (total_bytes <= max_bytes) break;
    if (info.key == keep) continue;
    total_bytes -= info.size_bytes;
    victims.push_back(info);
  }
  return victims;
}

int64_t LruIndex::size_bytes() const {
  return totals_[0].size_bytes + totals_[1].size_bytes;
}

std::vector<Usage> UsagesOf(const LruIndex& index, absl::string_view tier) {
  std::vector<Usage> usages;
  for (EntryKind kind : kEntryKinds) {
    usages.push_back({tier, kind, index.entries(kind), index.size_bytes(kind)});
  }
  return usages;
}

}  // namespace kiln::cache
