// The durable store, for its two parts: rocksdb_store.cc has what callers do with entries,
// rocksdb_upkeep.cc what a thread of its own does behind them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/lru_index.h"
#include "cache/rocksdb_database.h"
#include "cache/rocksdb_store.h"
#include "cache/set_aside.h"
#include "cache/value_files.h"

namespace kiln::cache {

std::string DatabasePath(const RocksDbOptions& options);

class RocksDbStore final : public PinningStore {
 public:
  struct Parts {
    std::shared_ptr<Database> database;
    LruIndex index;
  };

  RocksDbStore(RocksDbOptions options, ValueFiles files, SetAsideFolders aside, Parts parts);
  ~RocksDbStore() override;

  // The limit may be lower than the last time; from here on it holds.
  absl::Status Start();

  absl::StatusOr<Found> Get(const Key& key) override;
  std::vector<absl::StatusOr<Found>> GetMany(absl::Span<const Key> keys) override {
    return GetEach(*this, keys);
  }
  absl::Status Put(const Key& key, const EntryPtr& entry) override;
  absl::Status Remove(const Key& key) override;
  absl::Status SetPinned(const Key& key, bool pinned) override;
  void ForEach(const std::function<void(const EntryInfo&)>& visit) override;
  std::vector<Usage> Usages() override;

 private:
  static constexpr size_t kEvictionBatch = 512;

  int64_t NowMs() const { return absl::ToUnixMillis(options_.now()); }
  std::shared_ptr<Database> database() {
    absl::MutexLock lock(&mu_);
    return database_;
  }
  std::optional<EntryInfo> Find(const Key& key) {
    absl::MutexLock lock(&mu_);
    return index_.Find(key);
  }
  int64_t PinnedBytes() {
    absl::MutexLock lock(&mu_);
    return index_.pinned_bytes();
  }
  int64_t UsedBytes() {
    absl::MutexLock lock(&mu_);
    return std::max(index_.size_bytes(), index_.file_bytes() + table_bytes_);
  }

  absl::Status CheckSize(int64_t size_bytes) const;
  absl::Status CheckFree(int64_t size_bytes) const;

  // The entries that must go for `extra_bytes` more, and those that are too old; at most `most`.
  // Room is counted twice: as entries count themselves, and as files and tables are. Only a file
  // gives its room back at once, so the second count takes files alone.
  std::vector<EntryInfo> Oldest(int64_t extra_bytes, size_t most)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);

  // What was used before, in milliseconds since the epoch, is too old.
  int64_t OldestMs() const;
  // Evict of what Oldest gave, counted.
  absl::Status EvictOldest(const std::vector<EntryInfo>& victims)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Evicts until `extra_bytes` more fit.
  absl::Status EvictFor(int64_t extra_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Evicts until `info` fits; what it replaces goes first, so that the two never take room at once.
  absl::Status MakeRoom(EntryInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status Insert(const EntryInfo& info, const Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // All or, where the database fails, none.
  absl::Status Evict(const std::vector<EntryInfo>& victims)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status TakeBack(const std::vector<EntryInfo>& victims, absl::Status why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status CheckWorking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status Write(rocksdb::WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Writes the time down where the one on disk is a grain old.
  void NoteUse(EntryInfo info);

  // In rocksdb_upkeep.cc, from here to the fields.
  void ReportFailure(const absl::Status& status);
  void MeasureTables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  void RunUpkeep();
  // Writers go on meanwhile.
  void Compact();
  // Whether there is more to evict.
  bool LookAfter();
  // Files that no record names: a kill between two changes leaves none, a damaged disk may.
  void DeleteStrays();
  // After a failed write: makes the database write again, and what failed either done or undone.
  void Mend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status ProbeDisk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // The database says whether a change that failed took place after all.
  absl::Status SettleEntry(const EntryInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);

  const RocksDbOptions options_;
  const int64_t budget_bytes_;
  const absl::Duration last_use_grain_;
  const ValueFiles files_;
  // Taken before mu_: one writer at a time, so that index, files and database change in the same
  // order. It is the only lock that is held over disk writes.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  SetAsideFolders aside_ ABSL_GUARDED_BY(write_mu_);
  bool failed_ ABSL_GUARDED_BY(write_mu_) = false;
  std::vector<EntryInfo> unsettled_ ABSL_GUARDED_BY(write_mu_);  // writes that failed midway
  int64_t unmeasured_bytes_ ABSL_GUARDED_BY(write_mu_) = 0;      // written since table_bytes_
  int64_t table_bytes_ ABSL_GUARDED_BY(write_mu_) = 0;
  int64_t compacted_bytes_ ABSL_GUARDED_BY(write_mu_) = 0;  // after the last compaction
  absl::Mutex mu_;
  // Null while it is opened again.
  std::shared_ptr<Database> database_ ABSL_GUARDED_BY(mu_);
  LruIndex index_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<EntryKind, int64_t> evicted_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<EntryKind, int64_t> expired_ ABSL_GUARDED_BY(mu_);
  bool want_compaction_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t unreported_failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_report_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::thread upkeep_;
};

}  // namespace kiln::cache
