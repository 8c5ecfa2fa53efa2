// What the durable store's own thread does: measures and compacts, evicts what is too old, and
// mends what a failed write left.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/rocksdb_format.h"
#include "cache/rocksdb_store_impl.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr int64_t kSlackWriteBuffers = 8;
constexpr int64_t kRecordBytes = 80;  // of an entry in the index's tables
constexpr absl::Duration kFailureLogPeriod = absl::Minutes(1);
constexpr absl::Duration kReopenPoll = absl::Milliseconds(1);

}  // namespace

void RocksDbStore::MeasureTables() {
  std::shared_ptr<Database> database = this->database();
  if (database == nullptr) return;
  table_bytes_ = database->TableBytes();
  unmeasured_bytes_ = 0;
  // What was evicted still takes room: more than entries were counted with, and more than the
  // last compaction left.
  absl::MutexLock lock(&mu_);
  int64_t planned_bytes = index_.size_bytes() - index_.file_bytes();
  for (EntryKind kind : kEntryKinds) planned_bytes += kRecordBytes * index_.entries(kind);
  int64_t slack_bytes = kSlackWriteBuffers * WriteBufferBytes(options_.max_bytes);
  want_compaction_ |= table_bytes_ > std::max(planned_bytes, compacted_bytes_) + slack_bytes;
}

void RocksDbStore::ReportFailure(const absl::Status& status) {
  int64_t failures = 0;
  {
    absl::MutexLock lock(&mu_);
    ++unreported_failures_;
    if (options_.now() - last_report_ < kFailureLogPeriod) return;
    last_report_ = options_.now();
    failures = std::exchange(unreported_failures_, 0);
  }
  Log(LogLevel::kWarning, "the disk tier stores nothing; hits go on",
      {{"path", options_.path},
       {"failed_writes", absl::StrCat(failures)},
       {"why", std::string(status.message())}});
}

void RocksDbStore::RunUpkeep() {
  DeleteStrays();
  bool more = false;
  while (true) {
    bool compact = false;
    {
      absl::MutexLock lock(&mu_);
      auto stopping = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_; };
      absl::Duration wait = more ? absl::ZeroDuration() : options_.upkeep_period;
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping), wait)) return;
      compact = std::exchange(want_compaction_, false);
    }
    if (compact) Compact();
    more = LookAfter();
  }
}

void RocksDbStore::Compact() {
  std::shared_ptr<Database> database = this->database();
  if (database == nullptr) return;
  database->Compact().IgnoreError();  // asked for again where it did not help
  absl::MutexLock write_lock(&write_mu_);
  compacted_bytes_ = database->TableBytes();
}

bool RocksDbStore::LookAfter() {
  absl::MutexLock write_lock(&write_mu_);
  if (failed_) Mend();
  if (failed_) return false;
  MeasureTables();
  std::vector<EntryInfo> victims = Oldest(0, kEvictionBatch);
  if (victims.empty()) return false;
  absl::Status status = EvictOldest(victims);
  if (!status.ok()) ReportFailure(status);
  return status.ok();
}

void RocksDbStore::DeleteStrays() {
  files_.ForEach([this](const Key& key) {
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return false;
      if (index_.Contains(key)) return true;
    }
    absl::MutexLock write_lock(&write_mu_);
    std::optional<EntryInfo> info = Find(key);
    if (!info || !info->own_file) files_.Delete(key);
    return true;
  });
}

void RocksDbStore::Mend() {
  if (options_.free_bytes() < options_.min_free_bytes) return;
  // A database that cannot write still reads, and one that is closed does not: it is closed only
  // where the disk takes bytes again.
  absl::Status mended = ProbeDisk();
  if (mended.ok() && (database() == nullptr || !database()->Resume().ok())) mended = Reopen();
  if (!mended.ok()) return ReportFailure(mended);
  for (const EntryInfo& info : unsettled_) {
    if (absl::Status status = SettleEntry(info); !status.ok()) return ReportFailure(status);
  }
  unsettled_.clear();
  failed_ = false;
  Log(LogLevel::kInfo, "the disk tier stores again", {{"path", options_.path}});
}

absl::Status RocksDbStore::ProbeDisk() {
  auto probe_bytes = static_cast<size_t>(WriteBufferBytes(options_.max_bytes));
  Entry probe{std::string(probe_bytes, '\0'), Digest()};
  const Key no_entry;  // a digest of zeros
  KILN_RETURN_IF_ERROR(files_.Write(no_entry, probe));
  return files_.Discard(no_entry);
}

absl::Status RocksDbStore::Reopen() {
  std::shared_ptr<Database> old;
  {
    absl::MutexLock lock(&mu_);
    old = std::exchange(database_, nullptr);
  }
  // Readers took their share under the lock and give it back soon.
  while (old != nullptr && old.use_count() > 1) absl::SleepFor(kReopenPoll);
  old.reset();
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<Database> opened,
                        Database::Open(DatabasePath(options_), options_.max_bytes));
  absl::MutexLock lock(&mu_);
  database_ = std::move(opened);
  if (stopping_) database_->StopCompacting();
  return absl::OkStatus();
}

absl::Status RocksDbStore::SettleEntry(const EntryInfo& info) {
  KILN_ASSIGN_OR_RETURN(bool there, database()->HasRecord(info.key));
  if (info.own_file) {
    absl::Status moved = there ? files_.Publish(info.key) : files_.Discard(info.key);
    if (!moved.ok() && !absl::IsNotFound(moved)) return moved;
    if (!there) files_.Delete(info.key);
  }
  absl::MutexLock lock(&mu_);
  bool listed = index_.Contains(info.key);
  if (there && !listed) index_.Insert(info);
  if (!there && listed) index_.Erase(info.key);
  return absl::OkStatus();
}

}  // namespace kiln::cache
