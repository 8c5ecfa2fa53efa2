#include "cache/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "cache/rocksdb_format.h"
#include "cache/verifying_store.h"
#include "tests/unit/cache/temp_dir.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRecordOverhead = 128;  // FORMAT.md

Key MakeKey(int n) {
  return {EntryKind::kArtifact, Sha256(std::to_string(n))};
}

std::string MakeValue(int n, size_t size) {
  std::string value(size, '\0');
  for (size_t i = 0; i < size; ++i) value[i] = static_cast<char>((i * 31 + n * 17) >> 3);
  return value;
}

std::unique_ptr<Store> Open(const std::string& path, int64_t max_bytes = int64_t{1} << 30) {
  auto store = OpenRocksDbStore({.path = path, .max_bytes = max_bytes});
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

int64_t TotalBytes(Store& store) {
  int64_t total = 0;
  for (const Usage& usage : store.Usages()) total += usage.size_bytes;
  return total;
}

std::vector<Key> Keys(Store& store) {
  std::vector<Key> keys;
  store.ForEach([&](const EntryInfo& info) { keys.push_back(info.key); });
  return keys;
}

TEST(RocksDbStore, KeepsValuesOfAllSizesAcrossRestarts) {
  TempDir dir;
  const std::vector<size_t> sizes = {0, 1, 4095, 4096, 70000, 5 << 20};
  {
    auto store = Open(dir.path());
    for (size_t i = 0; i < sizes.size(); ++i) {
      int n = static_cast<int>(i);
      ASSERT_TRUE(store->Put(MakeKey(n), MakeEntry(MakeValue(n, sizes[i]))).ok());
    }
  }
  auto store = Open(dir.path());
  int64_t expected_bytes = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int n = static_cast<int>(i);
    auto found = store->Get(MakeKey(n));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->entry->bytes, MakeValue(n, sizes[i]));
    EXPECT_EQ(found->entry->digest, Sha256(found->entry->bytes));
    EXPECT_EQ(found->tier, "disk");
    expected_bytes += static_cast<int64_t>(sizes[i]) + kRecordOverhead;
  }
  EXPECT_EQ(TotalBytes(*store), expected_bytes);
}

TEST(RocksDbStore, StaysUnderItsLimitAndDropsTheLeastRecentlyUsed) {
  TempDir dir;
  constexpr int64_t kLimit = 5 * (1000 + kRecordOverhead);
  auto store = Open(dir.path(), kLimit);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i), MakeEntry(MakeValue(i, 1000))).ok());
  }
  ASSERT_TRUE(store->Get(MakeKey(0)).ok());
  for (int i = 5; i < 8; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i), MakeEntry(MakeValue(i, 1000))).ok());
    EXPECT_LE(TotalBytes(*store), kLimit);
  }
  EXPECT_THAT(Keys(*store),
              ElementsAre(MakeKey(4), MakeKey(0), MakeKey(5), MakeKey(6), MakeKey(7)));
  EXPECT_TRUE(absl::IsNotFound(store->Get(MakeKey(1)).status()));
}

TEST(RocksDbStore, ReplacingAValueCountsOnceAndEvictsNothing) {
  TempDir dir;
  auto store = Open(dir.path(), 4 * (1000 + kRecordOverhead));
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(store->Put(MakeKey(i), MakeEntry(MakeValue(i, 1000))).ok());
  }
  ASSERT_TRUE(store->Put(MakeKey(2), MakeEntry(MakeValue(9, 1000))).ok());
  EXPECT_EQ(Keys(*store).size(), 4u);
  EXPECT_EQ(store->Get(MakeKey(2))->entry->bytes, MakeValue(9, 1000));
}

TEST(RocksDbStore, RefusesAValueOverAQuarterOfItsLimit) {
  TempDir dir;
  auto store = Open(dir.path(), 10000);
  EXPECT_TRUE(absl::IsResourceExhausted(store->Put(MakeKey(1), MakeEntry(std::string(2500, 'x')))));
}

TEST(RocksDbStore, AFullDiskRefusesWritesAndServesReads) {
  TempDir dir;
  int64_t free_bytes = int64_t{1} << 30;
  auto store =
      OpenRocksDbStore({.path = dir.path(), .free_bytes = [&] { return free_bytes; }}).value();
  ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
  free_bytes = 1000;
  EXPECT_TRUE(absl::IsResourceExhausted(store->Put(MakeKey(2), MakeEntry("value"))));
  EXPECT_TRUE(store->Get(MakeKey(1)).ok());
  free_bytes = int64_t{1} << 30;
  EXPECT_TRUE(store->Put(MakeKey(2), MakeEntry("value")).ok());
}

TEST(RocksDbStore, RemovedEntriesStayRemoved) {
  TempDir dir;
  {
    auto store = Open(dir.path());
    ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
    ASSERT_TRUE(store->Remove(MakeKey(1)).ok());
    ASSERT_TRUE(store->Remove(MakeKey(2)).ok());
  }
  EXPECT_TRUE(Keys(*Open(dir.path())).empty());
}

// Runs store_writer.cc on `path`, kills it when it has written `entries`.
void WriteAndKill(const std::string& path, size_t entries) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(fds[1], STDOUT_FILENO);
    execl(KILN_STORE_WRITER, KILN_STORE_WRITER, path.c_str(), nullptr);
    _exit(127);
  }
  close(fds[1]);
  std::vector<char> marks(entries);
  for (size_t got = 0; got < entries;) {
    ssize_t n = read(fds[0], marks.data(), entries - got);
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  kill(child, SIGKILL);
  int wait_status = 0;
  waitpid(child, &wait_status, 0);
  close(fds[0]);
  ASSERT_TRUE(WIFSIGNALED(wait_status)) << "the writer ended by itself";
}

TEST(RocksDbStore, AProcessKilledWhileWritingLeavesWholeEntriesOnly) {
  TempDir dir;
  for (int round = 1; round <= 3; ++round) {
    WriteAndKill(dir.path(), 40);
    auto disk = Open(dir.path());
    auto store = MakeVerifyingStore(disk.get());
    VerifyResult result = VerifyAll(*store);
    EXPECT_GE(result.checked, 40);
    EXPECT_EQ(result.corrupt, 0);
    for (int i = 0; i < 40; ++i) EXPECT_TRUE(store->Get(MakeKey(i)).ok()) << i;
  }
}

TEST(RocksDbStore, SetsAnUnreadableDatabaseAside) {
  TempDir dir;
  std::string path = dir.path() + "/cache";
  {
    auto store = Open(path);
    ASSERT_TRUE(store->Put(MakeKey(1), MakeEntry("value")).ok());
  }
  std::ofstream(path + "/CURRENT") << "MANIFEST-999999\n";
  auto store = Open(path);
  EXPECT_TRUE(Keys(*store).empty());
  ASSERT_TRUE(store->Put(MakeKey(2), MakeEntry("value")).ok());
  int aside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    if (entry.path().filename().string().find("cache.set-aside-") == 0) ++aside;
  }
  EXPECT_EQ(aside, 1);
}

TEST(RocksDbStore, ReadersAndWritersRunTogether) {
  TempDir dir;
  auto store = Open(dir.path(), 20 * (1000 + kRecordOverhead));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int n = (i * 7 + t) % 40;
        if (i % 2 == 0) {
          store->Put(MakeKey(n), MakeEntry(MakeValue(n, 1000))).IgnoreError();  // may be evicted
        } else if (auto found = store->Get(MakeKey(n));
                   found.ok() && found->entry->bytes != MakeValue(n, 1000)) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(TotalBytes(*store), 20 * (1000 + kRecordOverhead));
}

TEST(RocksDbFormat, RecordsRoundTripAndMalformedOnesAreRefused) {
  EntryInfo info{MakeKey(3), 123456789012, 1700000000123};
  auto decoded = DecodeIndexRecord(EncodeKey(info.key), EncodeIndexRecord(info));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->key, info.key);
  EXPECT_EQ(decoded->size_bytes, info.size_bytes);
  EXPECT_EQ(decoded->last_used_unix_ms, info.last_used_unix_ms);
  std::string key = EncodeKey(info.key);
  EXPECT_FALSE(DecodeKey(key.substr(1)).has_value());
  key[0] = 9;
  EXPECT_FALSE(DecodeKey(key).has_value());
  EXPECT_FALSE(DecodeIndexRecord(EncodeKey(info.key), "short").has_value());
}

}  // namespace
}  // namespace kiln::cache
