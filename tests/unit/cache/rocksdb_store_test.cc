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
#include "cache/value_files.h"
#include "cache/verifying_store.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr int64_t kMiB = int64_t{1} << 20;

// Five fit into the least cache, six do not; each in a file of its own.
EntryPtr LargeEntry(int64_t number) {
  return MakeEntry(BytesOf(number, 5 << 20));
}

// Changes a closed store's database behind its back.
class RawDatabase {
 public:
  explicit RawDatabase(const std::string& path) {
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const char* name : {"default", kIndexFamily, kValuesFamily}) {
      families.push_back({name, rocksdb::ColumnFamilyOptions()});
    }
    rocksdb::Status status =
        rocksdb::DB::Open(rocksdb::DBOptions(), path + "/db", families, &families_, &db_);
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
  static constexpr int kIndex = 1, kValues = 2;

 private:
  rocksdb::DB* db_ = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

class RocksDbStoreTest : public ::testing::Test {
 protected:
  RocksDbStoreTest() {
    options_.path = dir_.path() + "/cache";
    options_.max_bytes = kLeastCacheBytes;
    options_.upkeep_period = absl::Milliseconds(10);
  }

  // Closes what is open first.
  PinningStore& Open() {
    store_.reset();
    auto store = OpenRocksDbStore(options_);
    if (!store.ok()) ADD_FAILURE() << store.status();
    store_ = *std::move(store);
    return *store_;
  }
  void Close() { store_.reset(); }

  std::string FileOf(const Key& key) {
    return options_.path + "/files/" + key.digest.ToHex().substr(0, 2) + "/" + FileNameOf(key);
  }

  template <typename F>
  static bool Eventually(F condition) {
    absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!condition()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

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
  std::unique_ptr<PinningStore> store_;
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
  int64_t expected_bytes = 0;
  for (size_t i = 0; i < 20; ++i) expected_bytes += i == 7 ? 0 : SizeOnDisk(1000 * i);
  EXPECT_EQ(artifact_bytes, expected_bytes);
  EXPECT_EQ(kernel_bytes, 20 * SizeOnDisk(10));

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
  options_.max_bytes = 256 * kMiB;
  std::string bytes = BytesOf(1, 40 << 20);
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry(bytes)).ok());
  auto found = Open().Get(ArtifactKeyOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->entry->bytes == bytes);
}

TEST_F(RocksDbStoreTest, ReplacingAnEntryCountsItOnceAndEvictsNothing) {
  Store& store = Open();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  // In a file, in the database, in a file.
  for (size_t size : {size_t{4} << 20, size_t{900}, size_t{5} << 20}) {
    ASSERT_TRUE(store.Put(ArtifactKeyOf(2), MakeEntry(BytesOf(9, size))).ok());
    EXPECT_EQ(Entries(store), 5);
    EXPECT_EQ(SizeBytes(store), 4 * SizeOnDisk(5 << 20) + SizeOnDisk(size));
    EXPECT_EQ(store.Get(ArtifactKeyOf(2))->entry->bytes, BytesOf(9, size));
  }
  EXPECT_EQ(Open().Get(ArtifactKeyOf(2))->entry->bytes, BytesOf(9, 5 << 20));
}

TEST_F(RocksDbStoreTest, DropsTheLeastRecentlyReadEntry) {
  Store& store = Open();
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  ASSERT_TRUE(store.Get(ArtifactKeyOf(1)).ok());
  ASSERT_TRUE(store.Put(ArtifactKeyOf(6), LargeEntry(6)).ok());
  EXPECT_THAT(Keys(store),
              UnorderedElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(4), ArtifactKeyOf(5),
                                   ArtifactKeyOf(1), ArtifactKeyOf(6)));
  EXPECT_EQ(UsageOf(store, EntryKind::kArtifact).evicted, 1);
  EXPECT_EQ(UsageOf(store, EntryKind::kArtifact).expired, 0);
  EXPECT_EQ(store.Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
  // Gone from the disk too, not only from the index in memory.
  EXPECT_EQ(Open().Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RocksDbStoreTest, AnEvictedEntryStaysWithWhoReadsIt) {
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), LargeEntry(1)).ok());
  EntryPtr held = store.Get(ArtifactKeyOf(1))->entry;
  for (int i = 2; i <= 7; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_EQ(store.Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Sha256(held->bytes), held->digest);
  EXPECT_TRUE(held->bytes == BytesOf(1, 5 << 20));
}

TEST_F(RocksDbStoreTest, APinnedEntryIsNeverEvictedAndStaysPinned) {
  PinningStore* store = &Open();
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), LargeEntry(1)).ok());
  ASSERT_TRUE(store->Put(KernelKeyOf(1), MakeEntry("small")).ok());
  ASSERT_TRUE(store->SetPinned(ArtifactKeyOf(1), true).ok());
  ASSERT_TRUE(store->SetPinned(KernelKeyOf(1), true).ok());
  for (int i = 2; i <= 12; ++i) {
    ASSERT_TRUE(store->Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
    if (i == 7) store = &Open();
  }
  EXPECT_TRUE(store->Get(ArtifactKeyOf(1)).ok());
  EXPECT_TRUE(store->Get(KernelKeyOf(1)).ok());
  // Put again it is still pinned; unpinned it goes in its turn.
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), LargeEntry(1)).ok());
  for (int i = 12; i <= 18; ++i) ASSERT_TRUE(store->Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_TRUE(store->Get(ArtifactKeyOf(1)).ok());
  ASSERT_TRUE(store->SetPinned(ArtifactKeyOf(1), false).ok());
  for (int i = 20; i <= 25; ++i) ASSERT_TRUE(store->Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RocksDbStoreTest, PinsPastHalfOfTheBudgetAreRefused) {
  PinningStore& store = Open();
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_TRUE(store.SetPinned(ArtifactKeyOf(1), true).ok());
  EXPECT_TRUE(store.SetPinned(ArtifactKeyOf(2), true).ok());
  EXPECT_TRUE(store.SetPinned(ArtifactKeyOf(2), true).ok()) << "pinned already";
  absl::Status refused = store.SetPinned(ArtifactKeyOf(3), true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(store.SetPinned(ArtifactKeyOf(9), true).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(store.Remove(ArtifactKeyOf(1)).ok()) << "a pin keeps nobody from removing";
  EXPECT_TRUE(store.SetPinned(ArtifactKeyOf(3), true).ok());
}

TEST_F(RocksDbStoreTest, WhatNobodyReadForTooLongGoesWithTheNextWrite) {
  absl::Time now = absl::Now();
  options_.now = [&] { return now; };
  options_.max_age = absl::Hours(24);
  options_.upkeep_period = absl::Hours(1);
  PinningStore& store = Open();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), MakeEntry("value")).ok());
  ASSERT_TRUE(store.SetPinned(ArtifactKeyOf(3), true).ok());
  now += absl::Hours(20);
  ASSERT_TRUE(store.Get(ArtifactKeyOf(2)).ok());
  now += absl::Hours(8);
  ASSERT_TRUE(store.Put(KernelKeyOf(1), MakeEntry("new")).ok());
  EXPECT_THAT(Keys(store), ElementsAre(ArtifactKeyOf(2), KernelKeyOf(1), ArtifactKeyOf(3)));
  now += absl::Hours(24);
  ASSERT_TRUE(store.Put(KernelKeyOf(1), MakeEntry("new")).ok());
  EXPECT_THAT(Keys(store), ElementsAre(KernelKeyOf(1), ArtifactKeyOf(3)));
  EXPECT_EQ(UsageOf(store, EntryKind::kArtifact).expired, 2);
  EXPECT_EQ(UsageOf(store, EntryKind::kKernel).expired, 0) << "it was replaced";
  EXPECT_EQ(UsageOf(store, EntryKind::kArtifact).evicted, 0);
}

TEST_F(RocksDbStoreTest, WhatNobodyReadForTooLongGoesWithoutAnyWrite) {
  options_.max_age = absl::Milliseconds(1);
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  EXPECT_TRUE(Eventually([&] { return Entries(store) == 0; }));
}

TEST_F(RocksDbStoreTest, EvictionAfterAReopenFollowsLastUseOnDisk) {
  Store& store = Open();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  Close();
  // Entry 1 was last used two days ago, entry 2 three, entry 3 four.
  int64_t now_ms = absl::ToUnixMillis(absl::Now());
  {
    RawDatabase raw(options_.path);
    for (int i = 1; i <= 3; ++i) {
      EntryInfo info{ArtifactKeyOf(i), SizeOnDisk(5 << 20), now_ms - (i + 1) * 24 * 3600 * 1000};
      info.own_file = true;
      raw.Put(RawDatabase::kIndex, EncodeKey(info.key), EncodeIndexRecord(info));
    }
  }
  EXPECT_THAT(Keys(Open()), ElementsAre(ArtifactKeyOf(3), ArtifactKeyOf(2), ArtifactKeyOf(1)));
  // A read that is more than an hour newer is written down, so that it counts after a restart.
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(store_->Get(ArtifactKeyOf(3)).ok());
    bool noted = false;
    store_->ForEach([&](const EntryInfo& info) {
      noted |= info.key == ArtifactKeyOf(3) && info.last_used_unix_ms >= now_ms;
    });
    return noted;
  })) << "a read that meets a writer leaves it to the next";
  Store& again = Open();
  EXPECT_THAT(Keys(again), ElementsAre(ArtifactKeyOf(2), ArtifactKeyOf(1), ArtifactKeyOf(3)));
  for (int i = 4; i <= 6; ++i) ASSERT_TRUE(again.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_THAT(Keys(again), ElementsAre(ArtifactKeyOf(1), ArtifactKeyOf(3), ArtifactKeyOf(4),
                                       ArtifactKeyOf(5), ArtifactKeyOf(6)));
}

TEST_F(RocksDbStoreTest, ASmallerLimitAfterAReopenHoldsFromTheStart) {
  options_.max_bytes = 128 * kMiB;
  Store& store = Open();
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(store.Put(KernelKeyOf(i), MakeEntry(BytesOf(i, 10'000))).ok());
  }
  options_.max_bytes = kLeastCacheBytes;
  Store& again = Open();
  EXPECT_LE(SizeBytes(again), EntryBudgetBytes(options_.max_bytes));
  EXPECT_LE(DiskUsageBytes(options_.path), options_.max_bytes);
  EXPECT_TRUE(again.Get(KernelKeyOf(1999)).ok()) << "the newest stay";
}

TEST_F(RocksDbStoreTest, ALimitThatIsTooSmallIsRefused) {
  options_.max_bytes = kLeastCacheBytes - 1;
  EXPECT_EQ(OpenRocksDbStore(options_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RocksDbStoreTest, RefusesAValueOverAQuarterOfTheLimit) {
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry(BytesOf(1, 8 * kMiB - 8192))).ok());
  absl::Status refused = store.Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 8 * kMiB)));
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
  // One value in the database and one in a file.
  for (size_t size_bytes : {100, 100'000}) {
    Key key = ArtifactKeyOf(static_cast<int64_t>(size_bytes));
    ASSERT_TRUE(Open().Put(key, MakeEntry(BytesOf(1, size_bytes))).ok());
    Close();
    {
      std::string file = FileOf(key);
      if (size_bytes == 100) {
        RawDatabase raw(options_.path);
        std::string value = raw.Get(RawDatabase::kValues, EncodeKey(key));
        ASSERT_EQ(value.size(), kDigestBytes + size_bytes);
        value[kDigestBytes + size_bytes / 2] ^= 0x40;
        raw.Put(RawDatabase::kValues, EncodeKey(key), value);
      } else {
        ASSERT_EQ(std::filesystem::file_size(file), kDigestBytes + size_bytes);
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(static_cast<std::streamoff>(kDigestBytes + size_bytes / 2));
        stream.put(BytesOf(1, size_bytes)[size_bytes / 2] ^ 0x40);
      }
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
  ASSERT_TRUE(store_->Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 10'000))).ok());
  std::filesystem::resize_file(FileOf(ArtifactKeyOf(2)), 31);
  EXPECT_EQ(store_->Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RocksDbStoreTest, AFileThatIsGoneIsDamage) {
  PinningStore& disk = Open();
  auto store = MakeVerifyingStore(&disk);
  ASSERT_TRUE(store->Put(ArtifactKeyOf(1), MakeEntry(BytesOf(1, 10'000))).ok());
  std::filesystem::remove(FileOf(ArtifactKeyOf(1)));
  EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->Get(ArtifactKeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Entries(*store), 0);
}

TEST_F(RocksDbStoreTest, WhatAKillLeftBetweenTwoStepsIsDoneOrUndone) {
  Store& store = Open();
  ASSERT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry(BytesOf(1, 10'000))).ok());
  ASSERT_TRUE(store.Put(ArtifactKeyOf(2), MakeEntry(BytesOf(2, 10'000))).ok());
  Close();
  // Entry 1 stands before its last rename, entry 3 before its record, and a file has no record.
  auto moving = [&](int number) {
    return options_.path + "/moving/" + FileNameOf(ArtifactKeyOf(number));
  };
  std::filesystem::rename(FileOf(ArtifactKeyOf(1)), moving(1));
  std::ofstream(moving(3)) << "half a val";
  std::filesystem::copy_file(FileOf(ArtifactKeyOf(2)), FileOf(ArtifactKeyOf(2)) + ".other");
  std::string stray = options_.path + "/files/ab/1-ab" + std::string(62, '0');
  std::filesystem::create_directories(options_.path + "/files/ab");
  std::ofstream(stray) << "stray";
  Store& again = Open();
  EXPECT_EQ(Entries(again), 2);
  EXPECT_EQ(again.Get(ArtifactKeyOf(1))->entry->bytes, BytesOf(1, 10'000));
  EXPECT_EQ(again.Get(ArtifactKeyOf(2))->entry->bytes, BytesOf(2, 10'000));
  EXPECT_TRUE(std::filesystem::is_empty(options_.path + "/moving"));
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(stray); }));
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

TEST_F(RocksDbStoreTest, OlderAndNewerFormatsAreSetAside) {
  for (const char* version : {"kiln-cache 0", "kiln-cache 3", ""}) {
    size_t before = SetAsideFolders().size();
    ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
    Close();
    std::ofstream(options_.path + "/FORMAT") << version << "\n";
    ::testing::internal::CaptureStderr();
    Store& store = Open();
    std::string logged = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(logged, HasSubstr(version));
    EXPECT_THAT(logged, HasSubstr("kiln-cache 2"));
    EXPECT_EQ(Entries(store), 0);
    EXPECT_TRUE(store.Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
    EXPECT_THAT(SetAsideFolders(), SizeIs(before + 1));
    EXPECT_EQ(Entries(Open()), 1) << "the new cache has this build's format";
  }
}

// A data directory may be one where somebody has a folder "cache" already.
TEST_F(RocksDbStoreTest, AFolderThatIsNoCacheIsRefusedAndLeftAlone) {
  const std::string& cache = options_.path;
  auto refused_for = [&](absl::string_view name) {
    const size_t before = SetAsideFolders().size();
    auto store = OpenRocksDbStore(options_);
    EXPECT_TRUE(absl::IsFailedPrecondition(store.status())) << store.status();
    EXPECT_THAT(std::string(store.status().message()), HasSubstr(cache));
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(cache, "/", name))) << name;
    EXPECT_THAT(SetAsideFolders(), SizeIs(before));
  };
  for (const char* folder : {"pip", "db", "files"}) {
    std::filesystem::create_directories(absl::StrCat(cache, "/", folder));
    std::ofstream(absl::StrCat(cache, "/", folder, "/CURRENT")) << "MANIFEST-000001\n";
    refused_for(absl::StrCat(folder, "/CURRENT"));
    std::filesystem::remove_all(cache);
  }
  std::filesystem::create_directories(cache);
  std::ofstream(cache + "/FORMAT") << "of something else\n";
  refused_for("FORMAT");
  std::filesystem::remove(cache + "/FORMAT");
  // A cache that would be set aside, but for a file in it.
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  Close();
  std::ofstream(cache + "/FORMAT") << "kiln-cache 1\n";
  std::ofstream(cache + "/thesis.tex") << "years of work";
  refused_for("thesis.tex");
}

TEST_F(RocksDbStoreTest, WhatWasSetAsideCountsAndGoesFirst) {
  const std::string aside = options_.path + ".set-aside-1700000000000";
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(9), MakeEntry("small")).ok());
  for (int i = 7; i <= 8; ++i) ASSERT_TRUE(store_->Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  Close();
  std::filesystem::rename(options_.path, aside);
  // Their names are much like it.
  const std::vector<std::string> foreign = {aside + "-mine", options_.path + ".set-aside-17",
                                            options_.path + ".set-aside-"};
  for (const std::string& folder : foreign) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/old") << std::string(9 << 20, 'x');
  }
  Store& store = Open();
  for (int i = 1; i <= 3; ++i) ASSERT_TRUE(store.Put(ArtifactKeyOf(i), LargeEntry(i)).ok());
  EXPECT_TRUE(std::filesystem::exists(aside));
  ASSERT_TRUE(store.Put(ArtifactKeyOf(4), LargeEntry(4)).ok());
  EXPECT_FALSE(std::filesystem::exists(aside));
  EXPECT_EQ(Entries(store), 4);
  for (const std::string& folder : foreign) EXPECT_TRUE(std::filesystem::exists(folder + "/old"));
}

TEST_F(RocksDbStoreTest, ADamagedDatabaseIsSetAside) {
  ASSERT_TRUE(Open().Put(ArtifactKeyOf(1), MakeEntry("value")).ok());
  for (const char* current : {"no manifest\n", "MANIFEST-999999\n"}) {
    size_t before = SetAsideFolders().size();
    Close();
    std::ofstream(options_.path + "/db/CURRENT") << current;
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
