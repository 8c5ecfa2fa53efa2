#include "cache/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/rocksdb_format.h"
#include "cache/verifying_store.h"
#include "tests/unit/cache/entries.h"
#include "tests/unit/cache/temp_dir.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kRecordBytes = 128;  // what an entry counts beside its value: FORMAT.md

// Changes a closed store's database behind its back.
class RawDatabase {
 public:
  explicit RawDatabase(const std::string& path) {
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const char* name : {"default", kIndexFamily, kValuesFamily}) {
      families.push_back({name, rocksdb::ColumnFamilyOptions()});
    }
    rocksdb::Status status =
        rocksdb::DB::Open(rocksdb::DBOptions(), path, families, &families_, &db_);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  ~RawDatabase() {
    for (rocksdb::ColumnFamilyHandle* family : families_) delete family;
    delete db_;
  }
  std::string Get(int family, const std::string& key) {
    std::string value;
    rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), families_[family], key, &value);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return value;
  }
  void Put(int family, const std::string& key, const std::string& value) {
    rocksdb::Status status = db_->Put(rocksdb::WriteOptions(), families_[family], key, value);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  static constexpr int kMeta = 0, kIndex = 1, kValues = 2;

 private:
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

class RocksDbStoreTest : public ::testing::Test {
 protected:
  RocksDbStoreTest() { options_.path = dir_.path() + "/cache"; }

  // Closes what is open first.
  Store& Open() {
    store_.reset();
    auto store = OpenRocksDbStore(options_);
    if (!store.ok()) ADD_FAILURE() << store.status();
    store_ = *std::move(store);
    return *store_;
  }
  void Close() { store_.reset(); }

  std::vector<std::string> SetAsideFolders() {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
      std::string name = file.path().filename();
      if (absl::StartsWith(name, "cache.set-aside-")) names.push_back(name);
    }
    return names;
  }

  TempDir dir_;
  RocksDbOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(RocksDbStoreTest, ReopeningKeepsEntriesAndAccounting) {
  Store& store = Open();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 1000 * i))).ok());
    ASSERT_TRUE(store.Put(KernelKeyOf(i), MakeEntry(BytesOf(-i, 10))).ok());
  }
  ASSERT_TRUE(store.Remove(ArtifactKeyOf(7)).ok());
  int64_t artifact_bytes = SizeBytes(store, EntryKind::kArtifact);
  int64_t kernel_bytes = SizeBytes(store, EntryKind::kKernel);
  EXPECT_EQ(artifact_bytes, 1000 * (19 * 20 / 2 - 7) + 19 * kRecordBytes);
  EXPECT_EQ(kernel_bytes, 20 * (10 + kRecordBytes));

  Store& again = Open();
  EXPECT_EQ(Entries(again, EntryKind::kArtifact), 19);
  EXPECT_EQ(Entries(again, EntryKind::kKernel), 20);
  EXPECT_EQ(SizeBytes(again, EntryKind::kArtifact), artifact_bytes);
  EXPECT_EQ(SizeBytes(again, EntryKind::kKernel), kernel_bytes);
  EXPECT_EQ(again.Get(ArtifactKeyOf(7)).status().code(), absl::StatusCode::kNotFound);
  for (int i = 0; i < 20; ++i) {
    if (i == 7) continue;
    auto found = again.Get(ArtifactKeyOf(i));
    ASSERT_TRUE(found.ok()) << i << ": " << found.status();
    EXPECT_EQ(found->entry->bytes, BytesOf(i, 1000 * i));
    EXPECT_EQ(found->entry->digest, Sha256(found->entry->bytes));
    EXPECT_EQ(found->tier, "disk");
  }
  EXPECT_TRUE(SetAsideFolders().empty());
}

TEST_F(RocksDbStoreTest, KeepsValuesOnBothSidesOfTheLeastBlobSize) {
  const size_t sizes[] = {0, 1, 4063, 4064, 4095, 4096, 4097, 1 << 20};
  for (size_t size : sizes) {
    Key key = KernelKeyOf(static_cast<int64_t>(size));
    ASSERT_TRUE(Open().Put(key, MakeEntry(BytesOf(5, size))).ok());
  }
  Store& store = Open();
  for (size_t size : sizes) {
    auto found = store.Get(KernelKeyOf(static_cast<int64_t>(size)));
    ASSERT_TRUE(found.ok()) << size << ": " << found.status();
    EXPECT_EQ(found->entry->bytes, BytesOf(5, size));
  }
}

TEST_F(RocksDbStoreTest, KeepsLargeValues) {
  std::string bytes = BytesOf(1, 40 << 20);
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry(bytes)).ok());
  auto found = Open().Get(ArtifactKeyOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->entry->bytes == bytes);
}

TEST_F(RocksDbStoreTest, ReplacingAnEntryCountsItOnceAndEvictsNothing) {
  options_.max_bytes = 4 * (1000 + kRecordBytes);
  Store& store = Open();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 1000))).ok());
  }
  ASSERT_TRUE(store.Put(ArtifactKeyOf(2), MakeEntry(BytesOf(9, 900))).ok());
  EXPECT_EQ(Entries(store), 4);
  EXPECT_EQ(SizeBytes(store), options_.max_bytes - 100);
  EXPECT_EQ(store.Get(ArtifactKeyOf(2))->entry->bytes, BytesOf(9, 900));
}

TEST_F(RocksDbStoreTest, NeverHoldsMoreThanItsLimitWhateverIsPut) {
  options_.max_bytes = 300'000;
  Store* store = &Open();
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    if (i % 100 == 99) store = &Open();
    int number = static_cast<int>(random() % 40);
    Key key = random() % 2 ? ArtifactKeyOf(number) : KernelKeyOf(number);
    ASSERT_TRUE(store->Put(key, MakeEntry(BytesOf(i, random() % 30'000))).ok());
    ASSERT_LE(SizeBytes(*store), options_.max_bytes);
    ASSERT_TRUE(store->Get(key).ok()) << "the entry just put was dropped";
  }
}

TEST_F(RocksDbStoreTest, DropsTheLeastRecentlyReadEntry) {
  options_.max_bytes = 45'000;
  Store& store = Open();
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  ASSERT_TRUE(store.Get(ArtifactKeyOf(1)).ok());
  ASSERT_TRUE(store.Put(ArtifactKeyOf(5), MakeEntry(BytesOf(5, 10'000))).ok());
  EXPECT_THAT(Keys(store),
              ElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(4), ArtifactKeyOf(1), ArtifactKeyOf(5)));
  EXPECT_EQ(store.Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
  // Gone from the disk too, not only from the index in memory.
  EXPECT_EQ(Open().Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RocksDbStoreTest, EvictionAfterAReopenFollowsLastUseOnDisk) {
  options_.max_bytes = 45'000;
  Store& store = Open();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  Close();
  // Entry 1 was last used two days ago, entry 2 three, entry 3 four.
  int64_t now_ms = absl::ToUnixMillis(absl::Now());
  {
    RawDatabase raw(options_.path);
    for (int i = 1; i <= 3; ++i) {
      EntryInfo info{ArtifactKeyOf(i), 10'000 + kRecordBytes, now_ms - (i + 1) * 24 * 3600 * 1000};
      raw.Put(RawDatabase::kIndex, EncodeKey(info.key), EncodeIndexRecord(info));
    }
  }
  EXPECT_THAT(Keys(Open()), ElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(2), ArtifactKeyOf(1)));
  // A read that is more than an hour newer is written down, so that it counts after a restart.
  ASSERT_TRUE(store_->Get(ArtifactKeyOf(3)).ok());
  Store& again = Open();
  EXPECT_THAT(Keys(again), ElementsAre(ArtifactKeyOf(2), ArtifactKeyOf(1), ArtifactKeyOf(3)));
  for (int i = 4; i <= 5; ++i) {
    ASSERT_TRUE(again.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  EXPECT_THAT(Keys(again),
              ElementsAre(ArtifactKeyOf(1), ArtifactKeyOf(3), ArtifactKeyOf(4), ArtifactKeyOf(5)));
}

TEST_F(RocksDbStoreTest, ASmallerLimitAfterAReopenHoldsFromTheFirstWrite) {
  Store& store = Open();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  options_.max_bytes = 50'000;
  Store& again = Open();
  ASSERT_TRUE(again.Put(KernelKeyOf(1), MakeEntry("k")).ok());
  EXPECT_LE(SizeBytes(again), options_.max_bytes);
}

TEST_F(RocksDbStoreTest, RefusesAValueOverAQuarterOfTheLimit) {
  options_.max_bytes = 100'000;
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry(BytesOf(1, 20'000))).ok());
  absl::Status refused = store.Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 25'001)));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Get(ArtifactKeyOf(1)).ok());
}

TEST_F(RocksDbStoreTest, AFullDiskRefusesWritesAndServesReads) {
  int64_t free_bytes = int64_t{1} << 40;
  options_.free_bytes = [&] { return free_bytes; };
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("before")).ok());
  free_bytes = options_.min_free_bytes;
  absl::Status refused = store.Put(ArtifactKeyOf(2), MakeEntry("after"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(options_.path));
  EXPECT_TRUE(store.Get(ArtifactKeyOf(1)).ok());
  free_bytes = int64_t{1} << 40;
  EXPECT_TRUE(store.Put(ArtifactKeyOf(2), MakeEntry("after")).ok());
}

TEST_F(RocksDbStoreTest, RemovedEntriesStayRemoved) {
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  ASSERT_TRUE(store.Remove(ArtifactKeyOf(1)).ok());
  ASSERT_TRUE(store.Remove(ArtifactKeyOf(2)).ok()) << "removing what is not there is no error";
  EXPECT_EQ(SizeBytes(store), 0);
  EXPECT_EQ(Entries(Open()), 0);
}

TEST_F(RocksDbStoreTest, AFlippedByteIsFoundRemovedAndStaysGone) {
  // One value in the tree itself and one in a blob file.
  for (size_t size_bytes : {100, 100'000}) {
    Key key = ArtifactKeyOf(static_cast<int64_t>(size_bytes));
    ASSERT_TRUE(Open().Put(key, MakeEntry(BytesOf(1, size_bytes))).ok());
    Close();
    {
      RawDatabase raw(options_.path);
      std::string value = raw.Get(RawDatabase::kValues, EncodeKey(key));
      ASSERT_EQ(value.size(), kDigestBytes + size_bytes);
      value[kDigestBytes + size_bytes / 2] ^= 0x40;
      raw.Put(RawDatabase::kValues, EncodeKey(key), value);
    }
    auto store = MakeVerifyingStore(&Open());
    EXPECT_EQ(store->Get(key).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(store->Get(key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Entries(*store), 0);
    EXPECT_EQ(SizeBytes(*store), 0);
    EXPECT_EQ(Open().Get(key).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(RocksDbStoreTest, AValueCutShortIsDamage) {
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  Close();
  {
    RawDatabase(options_.path).Put(RawDatabase::kValues, EncodeKey(ArtifactKeyOf(1)), "short");
  }
  EXPECT_EQ(Open().Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RocksDbStoreTest, MalformedIndexRecordsAreLeftOut) {
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  Close();
  {
    RawDatabase raw(options_.path);
    raw.Put(RawDatabase::kIndex, "no key", "no record");
    raw.Put(RawDatabase::kIndex, EncodeKey(ArtifactKeyOf(2)), "no record");
  }
  Store& store = Open();
  EXPECT_THAT(Keys(store), ElementsAre(ArtifactKeyOf(1)));
}

TEST_F(RocksDbStoreTest, AnotherFormatVersionIsSetAside) {
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  Close();
  {
    RawDatabase(options_.path).Put(RawDatabase::kMeta, "format", "kiln-cache 0");
  }
  Store& store = Open();
  EXPECT_EQ(Entries(store), 0);
  EXPECT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  EXPECT_THAT(SetAsideFolders(), SizeIs(1));
}

TEST_F(RocksDbStoreTest, ADamagedDatabaseIsSetAside) {
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  for (const char* current : {"no manifest\n", "MANIFEST-999999\n"}) {
    size_t before = SetAsideFolders().size();
    Close();
    std::ofstream(options_.path + "/CURRENT") << current;
    Store& store = Open();
    EXPECT_EQ(Entries(store), 0);
    EXPECT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
    EXPECT_THAT(SetAsideFolders(), SizeIs(before + 1));
  }
}

TEST_F(RocksDbStoreTest, AFolderThatCannotBeMadeIsATypedErrorThatNamesIt) {
  std::ofstream(dir_.path() + "/file") << "x";
  options_.path = dir_.path() + "/file/cache";
  auto store = OpenRocksDbStore(options_);
  ASSERT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(options_.path));
}

}  // namespace
}  // namespace kiln::cache
