#include "cache/rocksdb_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/lru_index.h"
#include "cache/rocksdb_format.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr absl::string_view kTier = "disk";
constexpr int64_t kRecordOverheadBytes = 128;  // keys, digest, index record
constexpr int64_t kLastUseGrainMs = 60 * 60 * 1000;
constexpr int64_t kMostValueShare = 4;  // one value may take a quarter of the limit

rocksdb::Slice ToSlice(absl::string_view s) {
  return {s.data(), s.size()};
}
absl::string_view ToView(const rocksdb::Slice& s) {
  return {s.data(), s.size()};
}

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

struct Database {
  std::unique_ptr<rocksdb::DB> db;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> meta;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> index;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> values;

  Database() = default;
  Database(Database&&) = default;
  Database& operator=(Database&&) = default;
  ~Database() {
    // Handles go before their database.
    meta.reset();
    index.reset();
    values.reset();
    db.reset();
  }
};

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.max_background_jobs = 2;
  options.max_total_wal_size = 128 << 20;
  options.keep_log_file_num = 4;
  options.max_log_file_size = 4 << 20;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions() {
  rocksdb::ColumnFamilyOptions options;
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = 16 << 20;
  return options;
}

// Values live in blob files, so that compaction rewrites keys and not megabytes of code.
rocksdb::ColumnFamilyOptions ValuesFamilyOptions() {
  rocksdb::ColumnFamilyOptions options = FamilyOptions();
  options.enable_blob_files = true;
  options.min_blob_size = 4096;
  options.blob_file_size = 64 << 20;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_age_cutoff = 1.0;
  options.blob_garbage_collection_force_threshold = 0.5;
  return options;
}

absl::StatusOr<Database> OpenDatabase(const std::string& path) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, FamilyOptions()},
      {kIndexFamily, FamilyOptions()},
      {kValuesFamily, ValuesFamilyOptions()}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(), path, families, &handles, &raw);
  // Foreign column families, or a file of the database gone: corrupt, though RocksDB names it
  // otherwise.
  if (status.IsInvalidArgument() || status.IsPathNotFound()) {
    return absl::DataLossError(absl::StrCat("not a whole Kiln cache: ", status.ToString()));
  }
  KILN_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("cannot open the cache ", path)));
  Database database;
  database.db.reset(raw);
  database.meta.reset(handles[0]);
  database.index.reset(handles[1]);
  database.values.reset(handles[2]);
  return database;
}

// Writes the format's version into a new database; DATA_LOSS where there is another one.
absl::Status CheckFormat(Database& database) {
  std::string version;
  rocksdb::Status status =
      database.db->Get(rocksdb::ReadOptions(), database.meta.get(), ToSlice(kFormatKey), &version);
  if (status.IsNotFound()) {
    return FromRocks(database.db->Put(rocksdb::WriteOptions(), database.meta.get(),
                                      ToSlice(kFormatKey), ToSlice(kFormatVersion)),
                     "cannot write the cache's format version");
  }
  KILN_RETURN_IF_ERROR(FromRocks(status, "cannot read the cache's format version"));
  if (version == kFormatVersion) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("its format is '", version, "', this build's is '", kFormatVersion, "'"));
}

absl::StatusOr<Database> OpenChecked(const std::string& path) {
  KILN_ASSIGN_OR_RETURN(Database database, OpenDatabase(path));
  KILN_RETURN_IF_ERROR(CheckFormat(database));
  return database;
}

absl::StatusOr<Database> OpenOrSetAside(const std::string& path) {
  absl::StatusOr<Database> database = OpenChecked(path);
  if (!absl::IsDataLoss(database.status())) return database;
  std::string aside = absl::StrCat(path, ".set-aside-", absl::ToUnixMillis(absl::Now()));
  std::error_code error;
  std::filesystem::rename(path, aside, error);
  if (error) return Annotate(database.status(), absl::StrCat("cannot set ", path, " aside"));
  Log(LogLevel::kWarning, "set an unreadable cache aside and started an empty one",
      {{"path", path}, {"aside", aside}, {"why", std::string(database.status().message())}});
  return OpenChecked(path);
}

absl::StatusOr<LruIndex> ReadIndex(Database& database) {
  std::vector<EntryInfo> entries;
  std::unique_ptr<rocksdb::Iterator> it(
      database.db->NewIterator(rocksdb::ReadOptions(), database.index.get()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (auto info = DecodeIndexRecord(ToView(it->key()), ToView(it->value()))) {
      entries.push_back(*info);
    }
  }
  KILN_RETURN_IF_ERROR(FromRocks(it->status(), "cannot read the cache's index"));
  std::stable_sort(entries.begin(), entries.end(), [](const EntryInfo& a, const EntryInfo& b) {
    return a.last_used_unix_ms < b.last_used_unix_ms;
  });
  LruIndex index;
  for (const EntryInfo& info : entries) index.Insert(info);
  return index;
}

class RocksDbStore final : public Store {
 public:
  RocksDbStore(RocksDbOptions options, Database database, LruIndex index)
      : options_(std::move(options)), database_(std::move(database)), index_(std::move(index)) {}

  absl::StatusOr<Found> Get(const Key& key) override {
    if (absl::MutexLock lock(&mu_); !index_.Contains(key))
      return absl::NotFoundError("not on disk");
    rocksdb::PinnableSlice raw;
    rocksdb::Status status = database_.db->Get(rocksdb::ReadOptions(), database_.values.get(),
                                               ToSlice(EncodeKey(key)), &raw);
    if (status.IsNotFound()) return absl::NotFoundError("evicted while it was read");
    KILN_RETURN_IF_ERROR(FromRocks(status, "cannot read a cache entry"));
    if (raw.size() < kDigestBytes) return absl::DataLossError("a cache entry is cut short");
    absl::string_view view = ToView(raw);
    auto entry = std::make_shared<Entry>();
    KILN_ASSIGN_OR_RETURN(entry->digest, Digest::FromBytes(view.substr(0, kDigestBytes)));
    entry->bytes = std::string(view.substr(kDigestBytes));
    NoteUse(key);
    return Found{std::move(entry), kTier};
  }

  absl::Status Put(const Key& key, const EntryPtr& entry) override {
    int64_t size_bytes = static_cast<int64_t>(entry->bytes.size()) + kRecordOverheadBytes;
    KILN_RETURN_IF_ERROR(CheckRoom(size_bytes));
    EntryInfo info{key, size_bytes, absl::ToUnixMillis(absl::Now())};
    absl::MutexLock write_lock(&write_mu_);
    std::vector<EntryInfo> victims;
    {
      absl::MutexLock lock(&mu_);
      int64_t replaced_bytes = 0;
      if (auto before = index_.Find(key)) replaced_bytes = before->size_bytes;
      victims = index_.Victims(size_bytes - replaced_bytes, options_.max_bytes, key);
    }
    rocksdb::WriteBatch batch;
    std::string raw_key = EncodeKey(key);
    for (const EntryInfo& victim : victims) {
      KILN_RETURN_IF_ERROR(AddDelete(victim.key, batch));
    }
    // In two parts, so that a value of hundreds of megabytes is not copied once more.
    rocksdb::Slice key_part = ToSlice(raw_key);
    rocksdb::Slice value_parts[] = {ToSlice(entry->digest.view()), ToSlice(entry->bytes)};
    KILN_RETURN_IF_ERROR(
        FromRocks(batch.Put(database_.values.get(), rocksdb::SliceParts(&key_part, 1),
                            rocksdb::SliceParts(value_parts, 2)),
                  "cannot prepare a cache entry"));
    KILN_RETURN_IF_ERROR(FromRocks(
        batch.Put(database_.index.get(), ToSlice(raw_key), ToSlice(EncodeIndexRecord(info))),
        "cannot prepare a cache entry"));
    KILN_RETURN_IF_ERROR(FromRocks(database_.db->Write(rocksdb::WriteOptions(), &batch),
                                   "cannot write a cache entry"));
    absl::MutexLock lock(&mu_);
    for (const EntryInfo& victim : victims) index_.Erase(victim.key);
    index_.Insert(info);
    return absl::OkStatus();
  }

  absl::Status Remove(const Key& key) override {
    absl::MutexLock write_lock(&write_mu_);
    {
      absl::MutexLock lock(&mu_);
      index_.Erase(key);
    }
    rocksdb::WriteBatch batch;
    KILN_RETURN_IF_ERROR(AddDelete(key, batch));
    return FromRocks(database_.db->Write(rocksdb::WriteOptions(), &batch),
                     "cannot remove a cache entry");
  }

  void ForEach(const std::function<void(const EntryInfo&)>& visit) override {
    std::vector<EntryInfo> entries;
    {
      absl::MutexLock lock(&mu_);
      entries = index_.List();
    }
    for (const EntryInfo& info : entries) visit(info);
  }

  std::vector<Usage> Usages() override {
    absl::MutexLock lock(&mu_);
    return UsagesOf(index_, kTier);
  }

 private:
  absl::Status CheckRoom(int64_t size_bytes) const {
    if (size_bytes > options_.max_bytes / kMostValueShare) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a value of ", size_bytes, " bytes is over a quarter of the cache's limit, ",
                       options_.max_bytes, " bytes"));
    }
    if (int64_t free = options_.free_bytes(); free - size_bytes < options_.min_free_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the disk of ", options_.path, " is full: ", free, " bytes are free"));
    }
    return absl::OkStatus();
  }

  absl::Status AddDelete(const Key& key, rocksdb::WriteBatch& batch) {
    std::string raw_key = EncodeKey(key);
    for (rocksdb::ColumnFamilyHandle* family : {database_.values.get(), database_.index.get()}) {
      KILN_RETURN_IF_ERROR(FromRocks(batch.Delete(family, ToSlice(raw_key)),
                                     "cannot prepare the removal of a cache entry"));
    }
    return absl::OkStatus();
  }

  void NoteUse(const Key& key) {
    int64_t now_ms = absl::ToUnixMillis(absl::Now());
    {
      absl::MutexLock lock(&mu_);
      auto before = index_.Find(key);
      if (!before) return;
      // Between writes the order in memory is exact and the one on disk an hour old at most.
      bool stale = now_ms - before->last_used_unix_ms >= kLastUseGrainMs;
      index_.Touch(key, stale ? now_ms : before->last_used_unix_ms);
      if (!stale) return;
    }
    absl::MutexLock write_lock(&write_mu_);
    std::optional<EntryInfo> info;
    {
      absl::MutexLock lock(&mu_);
      info = index_.Find(key);
    }
    if (!info) return;
    database_.db
        ->Put(rocksdb::WriteOptions(), database_.index.get(), ToSlice(EncodeKey(key)),
              ToSlice(EncodeIndexRecord(*info)))
        .PermitUncheckedError();  // costs only a place in the order of eviction after a restart
  }

  const RocksDbOptions options_;
  Database database_;
  // Taken before mu_: one writer at a time, so that index and database change in the same order.
  // It is the only lock that is held over disk writes.
  absl::Mutex write_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex mu_;
  LruIndex index_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRocksDbStore(const RocksDbOptions& given) {
  RocksDbOptions options = given;
  if (!options.free_bytes) {
    options.free_bytes = [path = options.path]() -> int64_t {
      std::error_code error;
      std::filesystem::space_info space = std::filesystem::space(path, error);
      // A file system that does not say is not full.
      return error ? INT64_MAX : static_cast<int64_t>(space.available);
    };
  }
  KILN_ASSIGN_OR_RETURN(Database database, OpenOrSetAside(options.path));
  KILN_ASSIGN_OR_RETURN(LruIndex index, ReadIndex(database));
  return std::make_unique<RocksDbStore>(std::move(options), std::move(database), std::move(index));
}

}  // namespace kiln::cache
