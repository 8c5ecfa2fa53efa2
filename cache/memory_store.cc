#include "cache/memory_store.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/lru_index.h"

namespace kiln::cache {
namespace {

constexpr absl::string_view kTier = "memory";
constexpr int64_t kEntryOverheadBytes = 256;  // key, index and bookkeeping

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(int64_t max_bytes) : max_bytes_(max_bytes) {}

  absl::StatusOr<Found> Get(const Key& key) override {
    absl::MutexLock lock(&mu_);
    auto it = values_.find(key);
    if (it == values_.end()) return absl::NotFoundError("not in memory");
    index_.Touch(key, absl::ToUnixMillis(absl::Now()));
    return Found{it->second, kTier};
  }

  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    return GetEach(*this, keys);
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    int64_t size_bytes = static_cast<int64_t>(entry->bytes.size()) + kEntryOverheadBytes;
    if (size_bytes > max_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("a value of ", entry->bytes.size(),
                                                       " bytes is over the memory tier's limit of ",
                                                       max_bytes_, " bytes"));
    }
    std::vector<EntryPtr> dropped;  // freed after the lock is let go
    absl::MutexLock lock(&mu_);
    index_.Erase(key);
    for (const EntryInfo& victim : index_.Victims(size_bytes, max_bytes_, key)) {
      index_.Erase(victim.key);
      ++evicted_[victim.key.kind];
      auto it = values_.find(victim.key);
      dropped.push_back(std::move(it->second));
      values_.erase(it);
    }
    index_.Insert({key, size_bytes, absl::ToUnixMillis(absl::Now())});
    values_[key] = entry;
    return absl::OkStatus();
  }

  absl::Status Remove(const Key& key) override {
    absl::MutexLock lock(&mu_);
    index_.Erase(key);
    values_.erase(key);
    return absl::OkStatus();
  }

  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    VisitEntries(mu_, index_, visit);
  }

  std::vector<Usage> Usages() override {
    absl::MutexLock lock(&mu_);
    std::vector<Usage> usages = UsagesOf(index_, kTier);
    for (Usage& usage : usages) usage.evicted = evicted_[usage.kind];
    return usages;
  }

 private:
  const int64_t max_bytes_;
  absl::Mutex mu_;
  LruIndex index_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Key, EntryPtr> values_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<EntryKind, int64_t> evicted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(int64_t max_bytes) {
  return std::make_unique<MemoryStore>(max_bytes);
}

}  // namespace kiln::cache
