#include "cache/rocksdb_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/rocksdb_format.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr int64_t kLeastWriteBufferBytes = 64 << 10;
constexpr int64_t kMostWriteBufferBytes = 8 << 20;
constexpr int64_t kWriteBufferShare = 512;
// What was read lately of the tables, also of those that compactions have replaced: it fills up
// however small the cache is.
constexpr int64_t kLeastBlockCacheBytes = 1 << 20;
constexpr int64_t kMostBlockCacheBytes = 64 << 20;
constexpr int64_t kBlockCacheShare = 16;
constexpr rlim_t kMaxOpenFiles = 512;
constexpr rlim_t kMinOpenFiles = 32;
constexpr size_t kReadaheadBytes = 4 << 20;

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

// Into our log at its least level, instead of files in the cache's folder: a full disk would be
// reported with every write.
class ForwardingLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (!LogEnabled(LogLevel::kDebug)) return;
    char line[512];
    std::vsnprintf(line, sizeof(line), format, arguments);
    Log(LogLevel::kDebug, "rocksdb", {{"says", line}});
  }
};

// A quarter of what the process may open: the rest is others'.
int MaxOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return static_cast<int>(kMinOpenFiles);
  return static_cast<int>(std::clamp(limit.rlim_cur / 4, kMinOpenFiles, kMaxOpenFiles));
}

rocksdb::DBOptions OptionsOf(int64_t max_bytes) {
  int64_t buffer_bytes = WriteBufferBytes(max_bytes);
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  // One flush and one compaction at a time, so that what they write has a bound.
  options.max_background_jobs = 2;
  options.max_total_wal_size = static_cast<uint64_t>(4 * buffer_bytes);
  options.max_manifest_file_size = 1 << 20;
  // Files that are longer than what is in them count in the limit.
  options.allow_fallocate = false;
  options.max_open_files = MaxOpenFiles();
  options.info_log = std::make_shared<ForwardingLogger>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  return options;
}

rocksdb::ColumnFamilyOptions FamilyOptions(int64_t max_bytes,
                                           rocksdb::BlockBasedTableOptions table) {
  auto buffer_bytes = static_cast<uint64_t>(WriteBufferBytes(max_bytes));
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // digests and machine code; a hit pays for it
  options.write_buffer_size = buffer_bytes;
  options.level0_slowdown_writes_trigger = 6;
  options.level0_stop_writes_trigger = 8;
  options.level_compaction_dynamic_level_bytes = true;
  options.max_bytes_for_level_base = 4 * buffer_bytes;
  options.target_file_size_base = buffer_bytes;
  options.max_compaction_bytes = 8 * buffer_bytes;
  // What was evicted gives its room back soon.
  options.table_properties_collector_factories.push_back(
      rocksdb::NewCompactOnDeletionCollectorFactory(512, 128));
  return options;
}

rocksdb::ColumnFamilyOptions IndexFamilyOptions(int64_t max_bytes) {
  rocksdb::BlockBasedTableOptions table;  // is scanned, never searched
  table.block_size = 32 << 10;
  table.no_block_cache = true;
  return FamilyOptions(max_bytes, table);
}

rocksdb::ColumnFamilyOptions ValuesFamilyOptions(int64_t max_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_cache = rocksdb::NewLRUCache(static_cast<size_t>(
      std::clamp(max_bytes / kBlockCacheShare, kLeastBlockCacheBytes, kMostBlockCacheBytes)));
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  rocksdb::ColumnFamilyOptions options = FamilyOptions(max_bytes, table);
  // Only what the index names is looked for, so the last level needs no filter.
  options.optimize_filters_for_hits = true;
  return options;
}

}  // namespace

int64_t WriteBufferBytes(int64_t max_bytes) {
  return std::clamp(max_bytes / kWriteBufferShare, kLeastWriteBufferBytes, kMostWriteBufferBytes);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path,
                                                         int64_t max_bytes) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, rocksdb::ColumnFamilyOptions()},
      {kIndexFamily, IndexFamilyOptions(max_bytes)},
      {kValuesFamily, ValuesFamilyOptions(max_bytes)}};
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(OptionsOf(max_bytes), path, families, &handles, &raw);
  // Foreign column families, or a file of the database gone: corrupt, though RocksDB names it
  // otherwise.
  if (status.IsInvalidArgument() || status.IsPathNotFound()) {
    return absl::DataLossError(absl::StrCat("not a whole Kiln cache: ", status.ToString()));
  }
  KILN_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("cannot open the cache ", path)));
  std::unique_ptr<Database> database(new Database());
  database->db_.reset(raw);
  database->unused_.reset(handles[0]);
  database->index_.reset(handles[1]);
  database->values_.reset(handles[2]);
  return database;
}

Database::~Database() {
  // Handles go before their database.
  unused_.reset();
  index_.reset();
  values_.reset();
  db_.reset();
}

absl::StatusOr<LruIndex> Database::ReadIndex() {
  LruIndex index;
  uint64_t estimate = 0;
  if (db_->GetIntProperty(index_.get(), rocksdb::DB::Properties::kEstimateNumKeys, &estimate)) {
    index.Reserve(static_cast<int64_t>(estimate));
  }
  rocksdb::ReadOptions options;
  options.readahead_size = kReadaheadBytes;
  options.fill_cache = false;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, index_.get()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    if (auto info = DecodeIndexRecord(ToView(it->key()), ToView(it->value()))) {
      index.InsertNew(*info);  // the database has a key once
    }
  }
  KILN_RETURN_IF_ERROR(FromRocks(it->status(), "cannot read the cache's index"));
  index.SortByLastUse();
  return index;
}

absl::StatusOr<EntryPtr> Database::ReadValue(const Key& key) {
  rocksdb::PinnableSlice raw;
  KILN_RETURN_IF_ERROR(
      FromRocks(db_->Get(rocksdb::ReadOptions(), values_.get(), ToSlice(EncodeKey(key)), &raw),
                "cannot read a cache entry"));
  if (raw.size() < kDigestBytes) return absl::DataLossError("a cache entry is cut short");
  absl::string_view view = ToView(raw);
  auto entry = std::make_shared<Entry>();
  KILN_ASSIGN_OR_RETURN(entry->digest, Digest::FromBytes(view.substr(0, kDigestBytes)));
  entry->bytes = std::string(view.substr(kDigestBytes));
  return entry;
}

absl::StatusOr<bool> Database::HasRecord(const Key& key) {
  std::string record;
  rocksdb::Status status =
      db_->Get(rocksdb::ReadOptions(), index_.get(), ToSlice(EncodeKey(key)), &record);
  if (status.IsNotFound()) return false;
  KILN_RETURN_IF_ERROR(FromRocks(status, "cannot read the cache's index"));
  return true;
}

absl::Status Database::AddRecord(const EntryInfo& info, rocksdb::WriteBatch& batch) {
  return FromRocks(
      batch.Put(index_.get(), ToSlice(EncodeKey(info.key)), ToSlice(EncodeIndexRecord(info))),
      "cannot prepare a cache entry");
}

absl::Status Database::AddValue(const Key& key, const Entry& entry, rocksdb::WriteBatch& batch) {
  std::string raw_key = EncodeKey(key);
  rocksdb::Slice key_part = ToSlice(raw_key);
  rocksdb::Slice value_parts[] = {ToSlice(entry.digest.view()), ToSlice(entry.bytes)};
  return FromRocks(batch.Put(values_.get(), rocksdb::SliceParts(&key_part, 1),
                             rocksdb::SliceParts(value_parts, 2)),
                   "cannot prepare a cache entry");
}

absl::Status Database::AddRemoval(const EntryInfo& info, rocksdb::WriteBatch& batch) {
  std::string raw_key = EncodeKey(info.key);
  rocksdb::Status status = batch.Delete(index_.get(), ToSlice(raw_key));
  if (status.ok() && !info.own_file) status = batch.Delete(values_.get(), ToSlice(raw_key));
  return FromRocks(status, "cannot prepare the removal of a cache entry");
}

absl::Status Database::Write(rocksdb::WriteBatch& batch) {
  return FromRocks(db_->Write(rocksdb::WriteOptions(), &batch), "cannot write to the cache");
}

int64_t Database::TableBytes() {
  uint64_t bytes = 0;
  db_->GetAggregatedIntProperty(rocksdb::DB::Properties::kLiveSstFilesSize, &bytes);
  return static_cast<int64_t>(bytes);
}

absl::Status Database::Compact() {
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  // Moving a file to the next level drops nothing.
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  for (rocksdb::ColumnFamilyHandle* family : {values_.get(), index_.get()}) {
    KILN_RETURN_IF_ERROR(FromRocks(db_->CompactRange(options, family, nullptr, nullptr),
                                   "cannot compact the cache"));
  }
  return absl::OkStatus();
}

void Database::StopCompacting() {
  db_->DisableManualCompaction();
}

absl::Status Database::Resume() {
  return FromRocks(db_->Resume(), "cannot go on after a failed write");
}

}  // namespace kiln::cache
