#include "cache/rocksdb_store.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/lru_index.h"
#include "cache/rocksdb_database.h"
#include "cache/rocksdb_format.h"
#include "cache/set_aside.h"
#include "cache/value_files.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr absl::string_view kTier = "disk";
constexpr absl::Duration kMostLastUseGrain = absl::Hours(1);
constexpr int64_t kMaxAgeGrainShare = 8;
constexpr int64_t kMostValueShare = 4;           // one value may take a quarter of the limit
constexpr int64_t kMostPinnedShare = 2;          // pinned entries may take half of the budget
constexpr int64_t kFixedReserveBytes = 4 << 20;  // 256 folders of files, manifests, options
// Logs 6, memtables on their way 4, one compaction 16, with as much again for one that is larger
// than it was planned.
constexpr int64_t kReserveWriteBuffers = 32;
constexpr int64_t kSlackWriteBuffers = 8;
constexpr int64_t kRecordBytes = 80;  // of an entry in the index's tables
constexpr size_t kEvictionBatch = 512;
constexpr int kMostSkipped = 4096;  // entries looked at for one that gives its room back at once
constexpr absl::Duration kFailureLogPeriod = absl::Minutes(1);
constexpr absl::Duration kReopenPoll = absl::Milliseconds(1);

struct Parts {
  std::shared_ptr<Database> database;
  LruIndex index;
};

std::string DatabasePath(const RocksDbOptions& options) {
  return absl::StrCat(options.path, "/", kDatabaseFolder);
}

absl::StatusOr<Parts> OpenParts(const RocksDbOptions& options, const ValueFiles& files) {
  KILN_RETURN_IF_ERROR(CheckFormat(options.path));
  KILN_RETURN_IF_ERROR(files.Prepare());
  Parts parts;
  KILN_ASSIGN_OR_RETURN(parts.database, Database::Open(DatabasePath(options), options.max_bytes));
  KILN_ASSIGN_OR_RETURN(parts.index, parts.database->ReadIndex());
  KILN_RETURN_IF_ERROR(files.Settle([&parts](const Key& key) {
    std::optional<EntryInfo> info = parts.index.Find(key);
    return info && info->own_file;
  }));
  return parts;
}

absl::StatusOr<Parts> OpenOrSetAside(const RocksDbOptions& options, const ValueFiles& files,
                                     SetAsideFolders& aside) {
  absl::StatusOr<Parts> parts = OpenParts(options, files);
  if (!absl::IsDataLoss(parts.status())) return parts;
  KILN_RETURN_IF_ERROR(aside.Add(parts.status().message()));
  return OpenParts(options, files);
}

class RocksDbStore final : public PinningStore {
 public:
  RocksDbStore(RocksDbOptions options, ValueFiles files, SetAsideFolders aside, Parts parts)
      : options_(std::move(options)),
        budget_bytes_(EntryBudgetBytes(options_.max_bytes)),
        last_use_grain_(std::min(kMostLastUseGrain, options_.max_age / kMaxAgeGrainShare)),
        files_(std::move(files)),
        aside_(std::move(aside)),
        database_(std::move(parts.database)),
        index_(std::move(parts.index)) {}

  // The limit may be lower than the last time; from here on it holds.
  absl::Status Start() {
    absl::MutexLock write_lock(&write_mu_);
    table_bytes_ = database()->TableBytes();
    aside_.Shrink(budget_bytes_ / 2);
    while (true) {
      std::vector<EntryInfo> victims = Oldest(0, kEvictionBatch);
      if (victims.empty()) break;
      KILN_RETURN_IF_ERROR(Evict(victims));
    }
    aside_.Shrink(budget_bytes_ - UsedBytes());
    upkeep_ = std::thread([this] { RunUpkeep(); });
    return absl::OkStatus();
  }

  ~RocksDbStore() override {
    if (!upkeep_.joinable()) return;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      if (database_ != nullptr) database_->StopCompacting();
    }
    upkeep_.join();
  }

  absl::StatusOr<Found> Get(const Key& key) override {
    // Twice, for one that is replaced meanwhile and changes its place.
    for (int attempt = 0; attempt < 2; ++attempt) {
      std::optional<EntryInfo> info;
      std::shared_ptr<Database> database;
      {
        absl::MutexLock lock(&mu_);
        info = index_.Find(key);
        if (!info) return absl::NotFoundError("not on disk");
        index_.Touch(key, info->last_used_unix_ms);
        database = database_;
      }
      if (!info->own_file && database == nullptr) {
        return absl::UnavailableError("the cache's database is being opened again");
      }
      absl::StatusOr<EntryPtr> entry = info->own_file ? files_.Read(key) : database->ReadValue(key);
      if (entry.ok()) {
        NoteUse(*info);
        return Found{*std::move(entry), kTier};
      }
      if (!absl::IsNotFound(entry.status())) return entry.status();
    }
    absl::MutexLock lock(&mu_);
    if (!index_.Contains(key)) return absl::NotFoundError("evicted while it was read");
    return absl::DataLossError("its value is gone from the disk");
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    EntryInfo info{key, SizeOnDisk(entry->bytes.size()), NowMs()};
    info.own_file = entry->bytes.size() >= kLeastFileValueBytes;
    KILN_RETURN_IF_ERROR(CheckSize(info.size_bytes));
    absl::Status status = CheckFree(info.size_bytes);
    if (status.ok()) {
      absl::MutexLock write_lock(&write_mu_);
      status = MakeRoom(info);
      if (status.ok()) status = Insert(info, *entry);
    }
    if (!status.ok()) ReportFailure(status);
    return status;
  }

  absl::Status Remove(const Key& key) override {
    absl::MutexLock write_lock(&write_mu_);
    std::optional<EntryInfo> info = Find(key);
    if (!info) return absl::OkStatus();
    return Evict({*info});
  }

  absl::Status SetPinned(const Key& key, bool pinned) override {
    absl::MutexLock write_lock(&write_mu_);
    KILN_RETURN_IF_ERROR(CheckWorking());
    std::optional<EntryInfo> info = Find(key);
    if (!info) return absl::NotFoundError("there is no such entry on disk");
    if (info->pinned == pinned) return absl::OkStatus();
    int64_t most_bytes = budget_bytes_ / kMostPinnedShare;
    if (pinned && PinnedBytes() + info->size_bytes > most_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pinned entries may take ", most_bytes, " bytes, half of the cache; ",
                       PinnedBytes(), " are pinned and this one takes ", info->size_bytes));
    }
    info->pinned = pinned;
    rocksdb::WriteBatch batch;
    KILN_RETURN_IF_ERROR(database()->AddRecord(*info, batch));
    KILN_RETURN_IF_ERROR(Write(batch));
    absl::MutexLock lock(&mu_);
    index_.SetPinned(key, pinned);
    return absl::OkStatus();
  }

  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    VisitEntries(mu_, index_, visit);
  }

  std::vector<Usage> Usages() override {
    absl::MutexLock lock(&mu_);
    return UsagesOf(index_, kTier);
  }

 private:
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

  absl::Status CheckSize(int64_t size_bytes) const {
    if (size_bytes <= options_.max_bytes / kMostValueShare) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("a value of ", size_bytes, " bytes is over a quarter of the cache's limit, ",
                     options_.max_bytes, " bytes"));
  }

  absl::Status CheckFree(int64_t size_bytes) const {
    int64_t free = options_.free_bytes();
    if (free - size_bytes >= options_.min_free_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the disk of ", options_.path, " is full: ", free, " bytes are free"));
  }

  // The entries that must go for `extra_bytes` more, and those that are too old; at most `most`.
  // Room is counted twice: as entries count themselves, and as files and tables are. Only a file
  // gives its room back at once, so the second count takes files alone.
  std::vector<EntryInfo> Oldest(int64_t extra_bytes, size_t most)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    int64_t oldest_ms = absl::ToUnixMillis(options_.now() - options_.max_age - last_use_grain_);
    if (options_.max_age == absl::InfiniteDuration()) oldest_ms = INT64_MIN;
    std::vector<EntryInfo> victims;
    absl::MutexLock lock(&mu_);
    int64_t over = index_.size_bytes() + extra_bytes - budget_bytes_;
    int64_t files_over = index_.file_bytes() + table_bytes_ + extra_bytes - budget_bytes_;
    int skipped = 0;
    index_.VisitOldest([&](const EntryInfo& info) {
      bool old = info.last_used_unix_ms < oldest_ms;
      if (victims.size() >= most || (!old && over <= 0 && files_over <= 0)) return false;
      if (!old && over <= 0 && !info.own_file) return ++skipped < kMostSkipped;
      victims.push_back(info);
      over -= info.size_bytes;
      if (info.own_file) files_over -= info.size_bytes;
      return true;
    });
    return victims;
  }

  // Evicts until `info` fits; what it replaces goes first, so that the two never take room at once.
  absl::Status MakeRoom(EntryInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    KILN_RETURN_IF_ERROR(CheckWorking());
    if (unmeasured_bytes_ > WriteBufferBytes(options_.max_bytes)) MeasureTables();
    if (std::optional<EntryInfo> before = Find(info.key)) {
      info.pinned = before->pinned;
      KILN_RETURN_IF_ERROR(Evict({*before}));
    }
    aside_.Shrink(budget_bytes_ - UsedBytes() - info.size_bytes);
    while (true) {
      std::vector<EntryInfo> victims = Oldest(info.size_bytes, kEvictionBatch);
      if (victims.empty()) break;
      KILN_RETURN_IF_ERROR(Evict(victims));
    }
    absl::MutexLock lock(&mu_);
    if (index_.size_bytes() + info.size_bytes > budget_bytes_) {
      return absl::ResourceExhaustedError("all that could make room in the cache is pinned");
    }
    int64_t taken_bytes = index_.file_bytes() + table_bytes_;
    if (taken_bytes + info.size_bytes > budget_bytes_) {
      want_compaction_ = true;
      return absl::ResourceExhaustedError(absl::StrCat("the cache's files take ", taken_bytes,
                                                       " of ", budget_bytes_,
                                                       " bytes until its database is compacted"));
    }
    return absl::OkStatus();
  }

  absl::Status Insert(const EntryInfo& info, const Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    std::shared_ptr<Database> database = this->database();
    rocksdb::WriteBatch batch;
    KILN_RETURN_IF_ERROR(database->AddRecord(info, batch));
    if (info.own_file) {
      KILN_RETURN_IF_ERROR(files_.Write(info.key, entry));
    } else {
      KILN_RETURN_IF_ERROR(database->AddValue(info.key, entry, batch));
    }
    absl::Status written = Write(batch);
    if (written.ok() && info.own_file) written = files_.Publish(info.key);
    if (!written.ok()) {
      unsettled_.push_back(info);
      failed_ = true;
      return written;
    }
    absl::MutexLock lock(&mu_);
    index_.Insert(info);
    return absl::OkStatus();
  }

  // All or, where the database fails, none.
  absl::Status Evict(const std::vector<EntryInfo>& victims)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    KILN_RETURN_IF_ERROR(CheckWorking());
    std::shared_ptr<Database> database = this->database();
    rocksdb::WriteBatch batch;
    for (const EntryInfo& victim : victims) {
      KILN_RETURN_IF_ERROR(database->AddRemoval(victim, batch));
    }
    {
      absl::MutexLock lock(&mu_);
      for (const EntryInfo& victim : victims) index_.Erase(victim.key);
    }
    // An entry whose file is gone already is evicted as well.
    absl::Status status;
    for (const EntryInfo& victim : victims) {
      if (!victim.own_file) continue;
      if (absl::Status s = files_.Retire(victim.key); !s.ok() && !absl::IsNotFound(s)) status = s;
    }
    if (status.ok()) status = Write(batch);
    if (!status.ok()) return TakeBack(victims, std::move(status));
    for (const EntryInfo& victim : victims) {
      if (victim.own_file) files_.Discard(victim.key).IgnoreError();  // the next start does it
    }
    return absl::OkStatus();
  }

  absl::Status TakeBack(const std::vector<EntryInfo>& victims, absl::Status why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    for (const EntryInfo& victim : victims) {
      if (victim.own_file) files_.Publish(victim.key).IgnoreError();  // then reading it says so
      unsettled_.push_back(victim);
    }
    failed_ = true;
    absl::MutexLock lock(&mu_);
    for (const EntryInfo& victim : victims) index_.Insert(victim);
    return why;
  }

  absl::Status CheckWorking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    if (!failed_) return absl::OkStatus();
    return absl::UnavailableError("a write to the cache failed; none is tried until it is mended");
  }

  absl::Status Write(rocksdb::WriteBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    KILN_RETURN_IF_ERROR(CheckWorking());
    unmeasured_bytes_ += static_cast<int64_t>(batch.GetDataSize());
    absl::Status status = database()->Write(batch);
    if (!status.ok()) failed_ = true;
    return status;
  }

  void MeasureTables() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
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

  // Writes the time down where the one on disk is a grain old.
  void NoteUse(EntryInfo info) {
    int64_t now_ms = NowMs();
    if (now_ms - info.last_used_unix_ms < absl::ToInt64Milliseconds(last_use_grain_)) return;
    // A read waits for no writer: the next one will do it.
    if (!write_mu_.TryLock()) return;
    info.last_used_unix_ms = now_ms;
    rocksdb::WriteBatch batch;
    if (Find(info.key) && CheckWorking().ok() && database()->AddRecord(info, batch).ok() &&
        Write(batch).ok()) {
      absl::MutexLock lock(&mu_);
      index_.Touch(info.key, now_ms);
    }
    write_mu_.Unlock();
  }

  void ReportFailure(const absl::Status& status) {
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

  void RunUpkeep() {
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

  // Writers go on meanwhile.
  void Compact() {
    std::shared_ptr<Database> database = this->database();
    if (database == nullptr) return;
    database->Compact().IgnoreError();  // asked for again where it did not help
    absl::MutexLock write_lock(&write_mu_);
    compacted_bytes_ = database->TableBytes();
  }

  // Whether there is more to evict.
  bool LookAfter() {
    absl::MutexLock write_lock(&write_mu_);
    if (failed_) Mend();
    if (failed_) return false;
    MeasureTables();
    std::vector<EntryInfo> victims = Oldest(0, kEvictionBatch);
    if (victims.empty()) return false;
    absl::Status status = Evict(victims);
    if (!status.ok()) ReportFailure(status);
    return status.ok();
  }

  // Files that no record names: a kill between two changes leaves none, a damaged disk may.
  void DeleteStrays() {
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

  // After a failed write: makes the database write again, and what failed either done or undone.
  void Mend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
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

  absl::Status ProbeDisk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
    auto probe_bytes = static_cast<size_t>(WriteBufferBytes(options_.max_bytes));
    Entry probe{std::string(probe_bytes, '\0'), Digest()};
    const Key no_entry;  // a digest of zeros
    KILN_RETURN_IF_ERROR(files_.Write(no_entry, probe));
    return files_.Discard(no_entry);
  }

  absl::Status Reopen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
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

  // The database says whether a change that failed took place after all.
  absl::Status SettleEntry(const EntryInfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_) {
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
  bool want_compaction_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t unreported_failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_report_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::thread upkeep_;
};

}  // namespace

int64_t EntryBudgetBytes(int64_t max_bytes) {
  return max_bytes - kReserveWriteBuffers * WriteBufferBytes(max_bytes) - kFixedReserveBytes;
}

absl::StatusOr<std::unique_ptr<PinningStore>> OpenRocksDbStore(const RocksDbOptions& given) {
  RocksDbOptions options = given;
  if (options.max_bytes < kLeastCacheBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a cache of ", options.max_bytes, " bytes is too small; the least is ", kLeastCacheBytes));
  }
  if (!options.free_bytes) {
    options.free_bytes = [path = options.path]() -> int64_t {
      std::error_code error;
      std::filesystem::space_info space = std::filesystem::space(path, error);
      // A file system that does not say is not full.
      return error ? INT64_MAX : static_cast<int64_t>(space.available);
    };
  }
  ValueFiles files(options.path);
  SetAsideFolders aside(options.path);
  KILN_ASSIGN_OR_RETURN(Parts parts, OpenOrSetAside(options, files, aside));
  auto store = std::make_unique<RocksDbStore>(std::move(options), std::move(files),
                                              std::move(aside), std::move(parts));
  KILN_RETURN_IF_ERROR(store->Start());
  return store;
}

}  // namespace kiln::cache
