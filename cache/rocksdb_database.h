// The database of the durable tier: its column families, and how RocksDB is held to a size. Only
// the store's own files include this.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/lru_index.h"
#include "cache/store.h"

namespace kiln::cache {

// Bytes of a memtable for a cache of `max_bytes`. The sizes of logs, levels and compactions are
// multiples of it.
int64_t WriteBufferBytes(int64_t max_bytes);

// Thread-safe but for its making and end.
class Database {
 public:
  // Opens or makes it. DATA_LOSS where there is something that is no whole database of ours.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, int64_t max_bytes);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Every entry, in order of last use. DATA_LOSS for a damaged table.
  absl::StatusOr<LruIndex> ReadIndex();
  // DATA_LOSS where it is cut short, NOT_FOUND where it is not in the database.
  absl::StatusOr<EntryPtr> ReadValue(const Key& key);
  absl::StatusOr<bool> HasRecord(const Key& key);

  absl::Status AddRecord(const EntryInfo& info, rocksdb::WriteBatch& batch);
  absl::Status AddValue(const Key& key, const Entry& entry, rocksdb::WriteBatch& batch);
  // Of the record, and of the value where it is here.
  absl::Status AddRemoval(const EntryInfo& info, rocksdb::WriteBatch& batch);
  absl::Status Write(rocksdb::WriteBatch& batch);

  // Of the tables that are part of the present state; logs and what compactions write come on top.
  int64_t TableBytes();
  // Gives back what was removed. Takes long.
  absl::Status Compact();
  // Makes Compact return early, now and later.
  void StopCompacting();
  // After a failed write: whether writes may go on.
  absl::Status Resume();

 private:
  Database() = default;
  std::unique_ptr<rocksdb::DB> db_;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> unused_;  // RocksDB wants its default family
  std::unique_ptr<rocksdb::ColumnFamilyHandle> index_;
  std::unique_ptr<rocksdb::ColumnFamilyHandle> values_;
};

}  // namespace kiln::cache
