#include "cache/lru_index.h"

#include <algorithm>
#include <utility>

namespace kiln::cache {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr uint32_t kVisitBatch = 256;  // places looked at under the lock at a time

}  // namespace

size_t LruIndex::HashPlace::operator()(uint32_t place) const {
  return absl::Hash<Key>()(KeyOf((*slots)[place]));
}

bool LruIndex::EqualPlace::operator()(uint32_t place, const Key& key) const {
  const Slot& slot = (*slots)[place];
  return slot.kind == static_cast<uint8_t>(key.kind) && slot.digest == key.digest;
}

LruIndex::LruIndex()
    : slots_(std::make_unique<Slots>()),
      by_key_(0, HashPlace{slots_.get()}, EqualPlace{slots_.get()}),
      free_(kNone),
      orders_{{kNone, kNone}, {kNone, kNone}} {}

EntryInfo LruIndex::InfoOf(const Slot& slot) {
  EntryInfo info{KeyOf(slot), static_cast<int64_t>(slot.size_bytes),
                 static_cast<int64_t>(slot.last_used_unix_ms)};
  info.pinned = slot.pinned != 0;
  info.own_file = slot.own_file != 0;
  return info;
}

uint32_t LruIndex::NewPlace() {
  if (free_ != kNone) {
    uint32_t place = free_;
    free_ = (*slots_)[place].newer;
    return place;
  }
  if (slots_->used % Slots::kChunk == 0) {
    slots_->chunks.push_back(std::make_unique<Slot[]>(Slots::kChunk));
  }
  return slots_->used++;
}

void LruIndex::Append(uint32_t place) {
  Slot& slot = (*slots_)[place];
  Order& order = orders_[slot.pinned];
  slot.older = order.newest;
  slot.newer = kNone;
  (order.newest == kNone ? order.oldest : (*slots_)[order.newest].newer) = place;
  order.newest = place;
}

void LruIndex::Unlink(uint32_t place) {
  Slot& slot = (*slots_)[place];
  Order& order = orders_[slot.pinned];
  (slot.older == kNone ? order.oldest : (*slots_)[slot.older].newer) = slot.newer;
  (slot.newer == kNone ? order.newest : (*slots_)[slot.newer].older) = slot.older;
}

void LruIndex::Count(const Slot& slot, int sign) {
  int64_t bytes = sign * static_cast<int64_t>(slot.size_bytes);
  Total& total = totals_[IndexOf(static_cast<EntryKind>(slot.kind))];
  total.entries += sign;
  total.size_bytes += bytes;
  if (slot.pinned) pinned_bytes_ += bytes;
  if (slot.own_file) file_bytes_ += bytes;
}

void LruIndex::Insert(const EntryInfo& info) {
  Erase(info.key);
  InsertNew(info);
}

void LruIndex::InsertNew(const EntryInfo& info) {
  uint32_t place = NewPlace();
  Slot& slot = (*slots_)[place];
  slot.digest = info.key.digest;
  slot.kind = static_cast<uint8_t>(info.key.kind);
  slot.size_bytes = static_cast<uint64_t>(info.size_bytes);
  slot.last_used_unix_ms = static_cast<uint64_t>(info.last_used_unix_ms);
  slot.pinned = info.pinned;
  slot.own_file = info.own_file;
  Append(place);
  Count(slot, 1);
  by_key_.insert(place);
}

void LruIndex::Touch(const Key& key, int64_t now_unix_ms) {
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  Unlink(*it);
  (*slots_)[*it].last_used_unix_ms = static_cast<uint64_t>(now_unix_ms);
  Append(*it);
}

void LruIndex::SetPinned(const Key& key, bool pinned) {
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  Slot& slot = (*slots_)[*it];
  Unlink(*it);
  Count(slot, -1);
  slot.pinned = pinned;
  Count(slot, 1);
  Append(*it);
}

std::optional<EntryInfo> LruIndex::Find(const Key& key) const {
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return std::nullopt;
  return InfoOf((*slots_)[*it]);
}

bool LruIndex::Erase(const Key& key) {
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return false;
  uint32_t place = *it;
  by_key_.erase(it);
  Slot& slot = (*slots_)[place];
  Unlink(place);
  Count(slot, -1);
  slot.kind = 0;
  slot.newer = free_;
  free_ = place;
  return true;
}

std::vector<EntryInfo> LruIndex::Victims(int64_t extra_bytes, int64_t max_bytes,
                                         const Key& keep) const {
  std::vector<EntryInfo> victims;
  int64_t total_bytes = size_bytes() + extra_bytes;
  VisitOldest([&](const EntryInfo& info) {
    if (total_bytes <= max_bytes) return false;
    if (info.key == keep) return true;
    total_bytes -= info.size_bytes;
    victims.push_back(info);
    return true;
  });
  return victims;
}

void LruIndex::VisitOldest(const std::function<bool(const EntryInfo&)>& visit) const {
  for (uint32_t place = orders_[0].oldest; place != kNone; place = (*slots_)[place].newer) {
    if (!visit(InfoOf((*slots_)[place]))) return;
  }
}

void LruIndex::SortByLastUse() {
  std::vector<std::pair<uint64_t, uint32_t>> by_time;
  by_time.reserve(by_key_.size());
  for (uint32_t place = 0; place < slots_->used; ++place) {
    const Slot& slot = (*slots_)[place];
    if (slot.kind != 0) by_time.emplace_back(slot.last_used_unix_ms, place);
  }
  std::stable_sort(by_time.begin(), by_time.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (Order& order : orders_) order = {kNone, kNone};
  for (const auto& [time, place] : by_time) Append(place);
}

uint32_t LruIndex::ReadPlaces(uint32_t place, uint32_t count, std::vector<EntryInfo>& out) const {
  const uint32_t end = std::min(slots_->used, place + count);
  for (; place < end; ++place) {
    const Slot& slot = (*slots_)[place];
    if (slot.kind != 0) out.push_back(InfoOf(slot));
  }
  return place < slots_->used ? place : kEnd;
}

int64_t LruIndex::size_bytes() const {
  int64_t bytes = 0;
  for (const Total& total : totals_) bytes += total.size_bytes;
  return bytes;
}

std::vector<Usage> UsagesOf(const LruIndex& index, absl::string_view tier) {
  std::vector<Usage> usages;
  for (EntryKind kind : kEntryKinds) {
    usages.push_back({.tier = tier,
                      .kind = kind,
                      .entries = index.entries(kind),
                      .size_bytes = index.size_bytes(kind)});
  }
  return usages;
}

void VisitEntries(absl::Mutex& mu, const LruIndex& index,
                  const std::function<void(const EntryInfo&)>& visit) {
  std::vector<EntryInfo> batch;
  for (uint32_t place = 0; place != LruIndex::kEnd;) {
    batch.clear();
    {
      absl::MutexLock lock(&mu);
      place = index.ReadPlaces(place, kVisitBatch, batch);
    }
    for (const EntryInfo& info : batch) visit(info);
  }
}

}  // namespace kiln::cache
