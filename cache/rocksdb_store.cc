#include "cache/rocksdb_store.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/rocksdb_format.h"
#include "cache/rocksdb_store_impl.h"
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
constexpr int kMostSkipped = 4096;  // entries looked at for one that gives its room back at once

using Parts = RocksDbStore::Parts;

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

}  // namespace

std::string DatabasePath(const RocksDbOptions& options) {
  return absl::StrCat(options.path, "/", kDatabaseFolder);
}

RocksDbStore::RocksDbStore(RocksDbOptions options, ValueFiles files, SetAsideFolders aside,
                           Parts parts)
    : options_(std::move(options)),
      budget_bytes_(EntryBudgetBytes(options_.max_bytes)),
      last_use_grain_(std::min(kMostLastUseGrain, options_.max_age / kMaxAgeGrainShare)),
      files_(std::move(files)),
      aside_(std::move(aside)),
      database_(std::move(parts.database)),
      index_(std::move(parts.index)) {}

absl::Status RocksDbStore::Start() {
  absl::MutexLock write_lock(&write_mu_);
  table_bytes_ = database()->TableBytes();
  aside_.Shrink(budget_bytes_ / 2);
  KILN_RETURN_IF_ERROR(EvictFor(0));
  aside_.Shrink(budget_bytes_ - UsedBytes());
  upkeep_ = std::thread([this] { RunUpkeep(); });
  return absl::OkStatus();
}

RocksDbStore::~RocksDbStore() {
  if (!upkeep_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    if (database_ != nullptr) database_->StopCompacting();
  }
  upkeep_.join();
}

absl::StatusOr<Found> RocksDbStore::Get(const Key& key) {
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

absl::Status RocksDbStore::Put(const Key& key, const EntryPtr& entry) {
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

absl::Status RocksDbStore::Remove(const Key& key) {
  absl::MutexLock write_lock(&write_mu_);
  std::optional<EntryInfo> info = Find(key);
  if (!info) return absl::OkStatus();
  return Evict({*info});
}

absl::Status RocksDbStore::SetPinned(const Key& key, bool pinned) {
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

void RocksDbStore::ForEach(const std::function<void(const EntryInfo&)>& visit) {
  VisitEntries(mu_, index_, visit);
}

std::vector<Usage> RocksDbStore::Usages() {
  absl::MutexLock lock(&mu_);
  std::vector<Usage> usages = UsagesOf(index_, kTier);
  for (Usage& usage : usages) {
    usage.evicted = evicted_[usage.kind];
    usage.expired = expired_[usage.kind];
  }
  return usages;
}

absl::Status RocksDbStore::CheckSize(int64_t size_bytes) const {
  if (size_bytes <= options_.max_bytes / kMostValueShare) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a value of ", size_bytes, " bytes is over a quarter of the cache's limit, ",
                   options_.max_bytes, " bytes"));
}

absl::Status RocksDbStore::CheckFree(int64_t size_bytes) const {
  int64_t free = options_.free_bytes();
  if (free - size_bytes >= options_.min_free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk of ", options_.path, " is full: ", free, " bytes are free"));
}

int64_t RocksDbStore::OldestMs() const {
  if (options_.max_age == absl::InfiniteDuration()) return INT64_MIN;
  return absl::ToUnixMillis(options_.now() - options_.max_age - last_use_grain_);
}

std::vector<EntryInfo> RocksDbStore::Oldest(int64_t extra_bytes, size_t most) {
  const int64_t oldest_ms = OldestMs();
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

absl::Status RocksDbStore::EvictFor(int64_t extra_bytes) {
  while (true) {
    std::vector<EntryInfo> victims = Oldest(extra_bytes, kEvictionBatch);
    if (victims.empty()) return absl::OkStatus();
    KILN_RETURN_IF_ERROR(EvictOldest(victims));
  }
}

absl::Status RocksDbStore::EvictOldest(const std::vector<EntryInfo>& victims) {
  KILN_RETURN_IF_ERROR(Evict(victims));
  const int64_t oldest_ms = OldestMs();
  absl::MutexLock lock(&mu_);
  for (const EntryInfo& victim : victims) {
    ++(victim.last_used_unix_ms < oldest_ms ? expired_ : evicted_)[victim.key.kind];
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::MakeRoom(EntryInfo& info) {
  KILN_RETURN_IF_ERROR(CheckWorking());
  if (unmeasured_bytes_ > WriteBufferBytes(options_.max_bytes)) MeasureTables();
  if (std::optional<EntryInfo> before = Find(info.key)) {
    info.pinned = before->pinned;
    KILN_RETURN_IF_ERROR(Evict({*before}));
  }
  aside_.Shrink(budget_bytes_ - UsedBytes() - info.size_bytes);
  KILN_RETURN_IF_ERROR(EvictFor(info.size_bytes));
  absl::MutexLock lock(&mu_);
  if (index_.size_bytes() + info.size_bytes > budget_bytes_) {
    return absl::ResourceExhaustedError("all that could make room in the cache is pinned");
  }
  int64_t taken_bytes = index_.file_bytes() + table_bytes_;
  if (taken_bytes + info.size_bytes > budget_bytes_) {
    want_compaction_ = true;
    return absl::ResourceExhaustedError(absl::StrCat("the cache's files take ", taken_bytes, " of ",
                                                     budget_bytes_,
                                                     " bytes until its database is compacted"));
  }
  return absl::OkStatus();
}

absl::Status RocksDbStore::Insert(const EntryInfo& info, const Entry& entry) {
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

absl::Status RocksDbStore::Evict(const std::vector<EntryInfo>& victims) {
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

absl::Status RocksDbStore::TakeBack(const std::vector<EntryInfo>& victims, absl::Status why) {
  for (const EntryInfo& victim : victims) {
    if (victim.own_file) files_.Publish(victim.key).IgnoreError();  // then reading it says so
    unsettled_.push_back(victim);
  }
  failed_ = true;
  absl::MutexLock lock(&mu_);
  for (const EntryInfo& victim : victims) index_.Insert(victim);
  return why;
}

absl::Status RocksDbStore::CheckWorking() {
  if (!failed_) return absl::OkStatus();
  return absl::UnavailableError("a write to the cache failed; none is tried until it is mended");
}

absl::Status RocksDbStore::Write(rocksdb::WriteBatch& batch) {
  KILN_RETURN_IF_ERROR(CheckWorking());
  unmeasured_bytes_ += static_cast<int64_t>(batch.GetDataSize());
  absl::Status status = database()->Write(batch);
  if (!status.ok()) failed_ = true;
  return status;
}

void RocksDbStore::NoteUse(EntryInfo info) {
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
