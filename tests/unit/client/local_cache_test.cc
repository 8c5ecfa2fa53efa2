#include "client/local_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/temp_dir.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class LocalCacheTest : public ::testing::Test {
 protected:
  std::unique_ptr<LocalCache> Open(int64_t max_bytes = 1 << 20) {
    auto cache = LocalCache::Open({folder_ + "/cache", max_bytes});
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  static Digest Key(int number) { return Sha256(absl::StrCat("key ", number)); }
  static LocalEntry Entry(int number, size_t size = 1000) {
    LocalEntry entry;
    entry.bytes = std::string(size, static_cast<char>('a' + number % 26));
    entry.digest = Sha256(entry.bytes);
    entry.signature = std::string(64, 's');
    return entry;
  }
  std::string FileOf(const Digest& key) const {
    return absl::StrCat(folder_, "/cache/", key.ToHex().substr(0, 2), "/", key.ToHex(), ".kiln");
  }
  int64_t BytesOnDisk() const {
    int64_t bytes = 0;
    for (const auto& file : fs::recursive_directory_iterator(folder_)) {
      if (file.path().extension() == ".kiln") bytes += static_cast<int64_t>(file.file_size());
    }
    return bytes;
  }

  const TempDir made_;
  const std::string folder_ = made_.path();
};

TEST_F(LocalCacheTest, GivesBackWhatWasPutAlsoToAnotherProcess) {
  ASSERT_TRUE(Open()->Put(Key(1), Entry(1)).ok());
  LocalEntry unsigned_entry = Entry(2);
  unsigned_entry.signature.clear();
  ASSERT_TRUE(Open()->Put(Key(2), unsigned_entry).ok());
  auto cache = Open();
  auto found = cache->Get(Key(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->bytes, Entry(1).bytes);
  EXPECT_EQ(found->digest, Entry(1).digest);
  EXPECT_EQ(found->signature, Entry(1).signature);
  EXPECT_EQ(cache->Get(Key(2))->signature, "");
  EXPECT_TRUE(absl::IsNotFound(cache->Get(Key(3)).status()));
}

TEST_F(LocalCacheTest, DamageIsAMissAndRemoved) {
  auto cache = Open();
  for (size_t at : {0, 10, 50, 104, 900, 1103}) {
    ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
    std::fstream file(FileOf(Key(1)), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    auto found = cache->Get(Key(1));
    if (at >= 40 && at < 104) {
      // The signature is the server's to judge.
      ASSERT_TRUE(found.ok());
      EXPECT_NE(found->signature, Entry(1).signature);
      continue;
    }
    EXPECT_TRUE(absl::IsDataLoss(found.status())) << at << ": " << found.status();
    EXPECT_TRUE(absl::IsNotFound(cache->Get(Key(1)).status())) << at;
  }
  for (int64_t size : {0, 50, 104, 800}) {
    ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
    fs::resize_file(FileOf(Key(1)), static_cast<uintmax_t>(size));
    EXPECT_TRUE(absl::IsDataLoss(cache->Get(Key(1)).status())) << size;
  }
}

TEST_F(LocalCacheTest, NeverHoldsMoreThanItsLimitAndDropsTheLongestUnused) {
  auto cache = Open(5 * 1104);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(cache->Put(Key(i), Entry(i)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
  }
  ASSERT_TRUE(cache->Get(Key(0)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(15));
  for (int i = 5; i < 8; ++i) {
    ASSERT_TRUE(cache->Put(Key(i), Entry(i)).ok());
    EXPECT_LE(BytesOnDisk(), 5 * 1104);
  }
  EXPECT_TRUE(cache->Get(Key(0)).ok());
  for (int gone : {1, 2, 3}) EXPECT_FALSE(cache->Get(Key(gone)).ok()) << gone;
  EXPECT_TRUE(absl::IsResourceExhausted(cache->Put(Key(9), Entry(9, 6000))));
  EXPECT_TRUE(cache->Get(Key(7)).ok());
}

TEST_F(LocalCacheTest, ProcessesThatWriteAtOnceLeaveWholeEntries) {
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      auto cache = LocalCache::Open({folder_ + "/cache", 20 * 1104});
      bool good = cache.ok();
      for (int i = 0; good && i < 60; ++i) {
        const absl::Status put = (*cache)->Put(Key(i % 10), Entry(i % 10));
        good = put.ok() || absl::IsUnavailable(put);  // where the disk is slow
        auto found = (*cache)->Get(Key((i * 7) % 10));
        good = good && (found.ok() || absl::IsNotFound(found.status()));
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  auto cache = Open();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(cache->Get(Key(i)).ok()) << i;
}

TEST_F(LocalCacheTest, WritersOfOneFolderNeverPassItsLimitTogether) {
  std::vector<std::thread> writers;
  std::atomic<int> running = 4;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      auto cache = Open(3 * 1104);
      for (int i = 0; i < 25; ++i) {
        const int entry = (writer * 25 + i) % 10;
        const absl::Status put = cache->Put(Key(entry), Entry(entry));
        EXPECT_TRUE(put.ok() || absl::IsUnavailable(put)) << put;
      }
      --running;
    });
  }
  // Looked at between two writes, as a listing of files that come and go is none.
  ASSERT_NE(Open(), nullptr);
  const int lock = open((folder_ + "/cache/lock").c_str(), O_RDWR | O_CREAT, 0600);
  int64_t most = 0;
  while (running > 0) {
    ASSERT_EQ(flock(lock, LOCK_EX), 0);
    most = std::max(most, BytesOnDisk());
    flock(lock, LOCK_UN);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  close(lock);
  for (std::thread& writer : writers) writer.join();
  EXPECT_LE(most, 3 * 1104);
  EXPECT_GT(BytesOnDisk(), 0);
}

TEST_F(LocalCacheTest, AFolderThatAnotherProcessKeepsLockedIsNotWaitedFor) {
  auto cache = Open();
  ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
  const int lock = open((folder_ + "/cache/lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(absl::IsUnavailable(cache->Put(Key(2), Entry(2))));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_TRUE(cache->Get(Key(1)).ok());
  close(lock);
  EXPECT_TRUE(cache->Put(Key(2), Entry(2)).ok());
}

TEST_F(LocalCacheTest, RefusesAFolderThatOthersMayWrite) {
  ASSERT_EQ(mkdir((folder_ + "/open").c_str(), 0777), 0);
  ASSERT_EQ(chmod((folder_ + "/open").c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(LocalCache::Open({folder_ + "/open", 1000}).status()));
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_TRUE(absl::IsFailedPrecondition(LocalCache::Open({folder_ + "/file", 1000}).status()));
}

TEST_F(LocalCacheTest, ADiskThatTakesNoFolderKeepsNothingUntilItDoes) {
  std::ofstream(folder_ + "/away") << "in place of the folder above the cache's";
  auto cache = LocalCache::Open({folder_ + "/away/cache", 1 << 20});
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_TRUE(absl::IsNotFound((*cache)->Get(Key(1)).status()));
  const absl::Status refused = (*cache)->Put(Key(1), Entry(1));
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), ::testing::HasSubstr(folder_ + "/away/cache"));
  fs::remove(folder_ + "/away");
  EXPECT_TRUE((*cache)->Put(Key(1), Entry(1)).ok());
  EXPECT_TRUE((*cache)->Get(Key(1)).ok());
}

TEST_F(LocalCacheTest, AFolderThatIsRemovedWhileInUseIsMadeAgain) {
  auto cache = Open();
  ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
  fs::remove_all(folder_ + "/cache");
  EXPECT_TRUE(absl::IsNotFound(cache->Get(Key(1)).status()));
  EXPECT_TRUE(cache->Put(Key(2), Entry(2)).ok());
  EXPECT_TRUE(Open()->Get(Key(2)).ok());
}

// What a user had in a folder before it became a cache by mistake.
TEST_F(LocalCacheTest, AFolderWithFilesOfTheUsersIsRefusedAndLeftAlone) {
  const fs::path mine = folder_ + "/mine";
  fs::create_directories(mine / "ab");
  fs::permissions(mine, fs::perms::owner_all);
  std::ofstream(mine / "ab" / "thesis.tex") << "years of work";
  fs::last_write_time(mine / "ab" / "thesis.tex", fs::file_time_type::clock::now() - 48h);
  const absl::Status refused = LocalCache::Open({mine, 1000}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), ::testing::HasSubstr(mine.native()));
  EXPECT_TRUE(fs::exists(mine / "ab" / "thesis.tex"));
  EXPECT_EQ(std::distance(fs::directory_iterator(mine), {}), 1);
  fs::create_directory(folder_ + "/empty");
  fs::permissions(folder_ + "/empty", fs::perms::owner_all);
  EXPECT_TRUE(LocalCache::Open({folder_ + "/empty", 1000}).ok());
}

TEST_F(LocalCacheTest, FilesThatAreNotTheCachesOwnStayAndDoNotCount) {
  auto cache = Open(3 * 1104);
  ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
  const fs::path root = folder_ + "/cache", entry = FileOf(Key(1)), own = entry.parent_path();
  const std::string hex = Key(1).ToHex();
  const std::vector<fs::path> foreign = {
      root / "notes.txt",
      root / "photos" / "1.kiln",
      root / hex.substr(0, 2) / "1.kiln",
      own / (hex + ".kiln.bak"),
      own / (hex + ".txt"),
      own / "deeper" / entry.filename(),
      root / (hex[0] == '0' ? "11" : "00") / entry.filename(),
      root / "linked" / entry.filename(),
  };
  for (const fs::path& file : foreign) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << std::string(5000, 'x');
    fs::last_write_time(file, fs::file_time_type::clock::now() - 48h);
  }
  fs::rename(root / "linked", folder_ + "/elsewhere");
  fs::create_directory_symlink(folder_ + "/elsewhere", root / (hex[0] == '2' ? "33" : "22"));
  const fs::path abandoned = own / (hex + ".kiln.123");
  std::ofstream(abandoned) << "half an entr";
  fs::last_write_time(abandoned, fs::file_time_type::clock::now() - 2h);
  for (int i = 2; i < 9; ++i) ASSERT_TRUE(cache->Put(Key(i), Entry(i)).ok());
  for (int i = 6; i < 9; ++i) EXPECT_TRUE(cache->Get(Key(i)).ok()) << i;
  EXPECT_FALSE(cache->Get(Key(1)).ok());
  EXPECT_FALSE(fs::exists(abandoned));
  for (const fs::path& file : foreign) {
    if (file.parent_path().filename() != "linked") EXPECT_TRUE(fs::exists(file)) << file;
  }
  EXPECT_TRUE(fs::exists(fs::path(folder_) / "elsewhere" / entry.filename()));
}

TEST_F(LocalCacheTest, ALinkIsNoEntry) {
  auto cache = Open();
  ASSERT_TRUE(cache->Put(Key(1), Entry(1)).ok());
  fs::create_directories(fs::path(FileOf(Key(2))).parent_path());
  fs::create_symlink(FileOf(Key(1)), FileOf(Key(2)));
  EXPECT_FALSE(cache->Get(Key(2)).ok());
}

TEST(ParseLocalCache, TakesAFolderAndASize) {
  EXPECT_EQ(ParseLocalCache("/a/b")->folder, "/a/b");
  EXPECT_EQ(ParseLocalCache("/a/b:3MiB")->max_bytes, 3 << 20);
  EXPECT_EQ(ParseLocalCache("/a/b:77")->max_bytes, 77);
  for (const char* bad : {"", ":3MiB", "/a:", "/a:x", "/a:-1", "/a:3MB", "/a:99999999999GiB"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseLocalCache(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace kiln
