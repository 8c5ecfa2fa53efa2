#include "tests/integration/raw_cache.h"

#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "cache/rocksdb_format.h"

namespace kiln::integration {
namespace {

bool FlipMiddle(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
  file.seekg(middle);
  auto byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(middle);
  file.put(byte);
  return file.good();
}

}  // namespace

absl::StatusOr<int> FlipStoredValues(const std::string& cache_path, cache::EntryKind kind) {
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const char* name : {"default", cache::kIndexFamily, cache::kValuesFamily}) {
    families.push_back({name, rocksdb::ColumnFamilyOptions()});
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(
      rocksdb::DBOptions(), cache_path + "/" + cache::kDatabaseFolder, families, &handles, &raw);
  if (!status.ok()) return absl::InternalError(status.ToString());
  std::unique_ptr<rocksdb::DB> db(raw);
  std::vector<std::pair<std::string, std::string>> damaged;
  {
    std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions(), handles[2]));
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      std::string key = it->key().ToString();
      std::string value = it->value().ToString();
      if (key[0] != static_cast<char>(kind) || value.size() <= cache::kDigestBytes) continue;
      value[(cache::kDigestBytes + value.size()) / 2] ^= 0x10;
      damaged.emplace_back(std::move(key), std::move(value));
    }
    status = it->status();
  }
  for (const auto& [key, value] : damaged) {
    if (status.ok()) status = db->Put(rocksdb::WriteOptions(), handles[2], key, value);
  }
  for (rocksdb::ColumnFamilyHandle* handle : handles) db->DestroyColumnFamilyHandle(handle);
  if (!status.ok()) return absl::InternalError(status.ToString());
  int files = 0;
  std::string first_letter = std::to_string(static_cast<int>(kind));
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(cache_path + "/" + cache::kFilesFolder)) {
    if (!entry.is_regular_file() || entry.path().filename().string()[0] != first_letter[0])
      continue;
    if (!FlipMiddle(entry.path()))
      return absl::InternalError("cannot change " + entry.path().string());
    ++files;
  }
  return static_cast<int>(damaged.size()) + files;
}

absl::StatusOr<int> FlipFiles(const std::string& folder, const std::string& extension) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().extension() != extension) continue;
    if (entry.file_size() == 0) continue;
    if (!FlipMiddle(entry.path()))
      return absl::InternalError("cannot change " + entry.path().string());
    ++files;
  }
  return files;
}

}  // namespace kiln::integration
