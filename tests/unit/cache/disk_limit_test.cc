// The durable tier against the file system: its bound, a disk that is full, and what heals it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/rocksdb_format.h"
#include "cache/rocksdb_store.h"
#include "cache/value_files.h"
#include "cache/verifying_store.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

template <typename F>
bool Eventually(F condition) {
  absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// A file system of its own, gone at the end.
class SmallFileSystem {
 public:
  SmallFileSystem(const std::string& path, int mebibytes) : path_(path) {
    std::filesystem::create_directories(path_);
    std::string size = absl::StrCat("size=", mebibytes, "m");
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  int64_t used_bytes() const {
    struct statvfs info;
    if (statvfs(path_.c_str(), &info) != 0) return -1;
    return static_cast<int64_t>((info.f_blocks - info.f_bfree) * info.f_frsize);
  }

 private:
  const std::string path_;
  bool mounted_ = false;
};

// Looks again and again at what is stored, in a thread of its own.
class DiskWatch {
 public:
  explicit DiskWatch(std::function<int64_t()> used_bytes)
      : used_bytes_(std::move(used_bytes)), thread_([this] {
          while (!stopping_) {
            most_bytes_ = std::max(most_bytes_.load(), used_bytes_());
            ++samples_;
            absl::SleepFor(absl::Microseconds(200));
          }
        }) {}
  ~DiskWatch() { Stop(); }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int64_t most_bytes() const { return most_bytes_; }
  int samples() const { return samples_; }

 private:
  const std::function<int64_t()> used_bytes_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> most_bytes_ = 0;
  std::atomic<int> samples_ = 0;
  std::thread thread_;
};

struct Mix {
  const char* name;
  size_t least_bytes;
  size_t most_bytes;
  int puts;
};

class DiskBoundTest : public ::testing::TestWithParam<Mix> {};

TEST_P(DiskBoundTest, TheFileSystemNeverHoldsMoreThanTheLimit) {
  const Mix& mix = GetParam();
  TempDir dir;
  // Its own count is exact at every moment; du looks at one file after the other while they move.
  SmallFileSystem disk(dir.path() + "/disk", 64);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not allowed here";
  RocksDbOptions options;
  options.path = dir.path() + "/disk/cache";
  options.max_bytes = kLeastCacheBytes;
  options.min_free_bytes = 0;
  options.upkeep_period = absl::Milliseconds(50);
  auto store = OpenRocksDbStore(options);
  ASSERT_TRUE(store.ok()) << store.status();
  DiskWatch watch([&disk] { return disk.used_bytes(); });
  std::mt19937 random(11);
  int64_t refused = 0;
  for (int i = 0; i < mix.puts; ++i) {
    if (i % (mix.puts / 3) == mix.puts / 3 - 1) {
      store->reset();
      store = OpenRocksDbStore(options);
      ASSERT_TRUE(store.ok()) << store.status();
    }
    size_t size = mix.least_bytes + random() % (mix.most_bytes - mix.least_bytes + 1);
    // Some keys come again.
    Key key = random() % 8 ? KernelKeyOf(i) : KernelKeyOf(static_cast<int>(random() % 100));
    absl::Status put = (*store)->Put(key, MakeEntry(BytesOf(i, size)));
    if (put.ok()) {
      ASSERT_TRUE((*store)->Get(key).ok()) << "the entry just put was dropped";
    } else {
      ASSERT_EQ(put.code(), absl::StatusCode::kResourceExhausted) << put;
      ++refused;
    }
  }
  watch.Stop();
  EXPECT_LE(DiskUsageBytes(options.path), options.max_bytes);
  std::cout << mix.name << ": most " << watch.most_bytes() << " of " << options.max_bytes << " in "
            << watch.samples() << " looks; " << Entries(**store) << " entries; " << refused
            << " of " << mix.puts << " writes refused\n";
  EXPECT_GT(watch.samples(), 10);
  EXPECT_LE(watch.most_bytes(), options.max_bytes);
  EXPECT_GT(watch.most_bytes(), options.max_bytes / 2) << "the limit is made use of";
  EXPECT_LE(refused, mix.puts / 20);
  store->reset();  // before its file system
}

INSTANTIATE_TEST_SUITE_P(Sizes, DiskBoundTest,
                         ::testing::Values(Mix{"small", 100, 2000, 40'000},
                                           Mix{"mixed", 100, 60'000, 6'000},
                                           Mix{"large", 1 << 20, 6 << 20, 120}),
                         [](const auto& info) { return std::string(info.param.name); });

class FullDiskTest : public ::testing::Test {
 protected:
  void Open() {
    auto store = OpenRocksDbStore(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  TempDir dir_;
  RocksDbOptions options_;
  std::unique_ptr<PinningStore> store_;
};

// Files may not grow past a size: every write fails, as on a full disk, without anybody's rights.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = signal(SIGXFSZ, SIG_IGN);
    rlimit lowered = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &lowered);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int) = SIG_DFL;
};

TEST_F(FullDiskTest, WritesThatFailLeaveHitsAndHealByThemselves) {
  options_.path = dir_.path() + "/cache";
  options_.max_bytes = kLeastCacheBytes;
  options_.upkeep_period = absl::Milliseconds(20);
  ASSERT_NO_FATAL_FAILURE(Open());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(store_->Put(KernelKeyOf(i), MakeEntry(BytesOf(i, 500))).ok());
    ASSERT_TRUE(store_->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 20'000))).ok());
  }
  auto expect_hits = [this] {
    for (int i = 0; i < 50; ++i) {
      auto kernel = store_->Get(KernelKeyOf(i));
      ASSERT_TRUE(kernel.ok()) << i << ": " << kernel.status();
      ASSERT_EQ(kernel->entry->bytes, BytesOf(i, 500));
      ASSERT_TRUE(store_->Get(ArtifactKeyOf(i)).ok());
    }
  };
  ::testing::internal::CaptureStderr();
  {
    FileSizeLimit full(8192);  // what is logged still fits
    for (int i = 100; i < 140; ++i) {
      EXPECT_FALSE(store_->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 20'000))).ok());
      EXPECT_FALSE(store_->Put(KernelKeyOf(i), MakeEntry(BytesOf(i, 500))).ok());
      if (i % 10 == 0) absl::SleepFor(absl::Milliseconds(30));  // let it try to mend itself
      ASSERT_NO_FATAL_FAILURE(expect_hits());
    }
  }
  std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 1) << "once a minute: " << logged;
  EXPECT_THAT(logged, ::testing::HasSubstr(options_.path));
  ASSERT_TRUE(Eventually([this] {
    return store_->Put(KernelKeyOf(200), MakeEntry(BytesOf(200, 500))).ok();
  })) << "writes go on once there is room";
  EXPECT_TRUE(store_->Put(ArtifactKeyOf(200), MakeEntry(BytesOf(200, 20'000))).ok());
  ASSERT_NO_FATAL_FAILURE(expect_hits());
  // What failed is not there, now and after a restart; what was stored is.
  for (int restart = 0; restart < 2; ++restart) {
    EXPECT_EQ(Entries(*store_), 102);
    EXPECT_FALSE(store_->Get(ArtifactKeyOf(100)).ok());
    EXPECT_FALSE(store_->Get(KernelKeyOf(100)).ok());
    EXPECT_TRUE(store_->Get(KernelKeyOf(200)).ok());
    VerifyResult verified = VerifyAll(*MakeVerifyingStore(store_.get()));
    EXPECT_EQ(verified.checked, 102);
    EXPECT_EQ(verified.corrupt, 0);
    store_.reset();
    ASSERT_NO_FATAL_FAILURE(Open());
  }
}

TEST_F(FullDiskTest, AFileSystemThatOthersFilledServesHitsAndTakesWritesAgain) {
  SmallFileSystem disk(dir_.path() + "/disk", 24);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not allowed here";
  options_.path = dir_.path() + "/disk/cache";
  options_.max_bytes = kLeastCacheBytes;  // more than there is
  options_.min_free_bytes = 0;            // so that the disk itself says no
  options_.upkeep_period = absl::Milliseconds(20);
  ASSERT_NO_FATAL_FAILURE(Open());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store_->Put(KernelKeyOf(i), MakeEntry(BytesOf(i, 500))).ok());
    ASSERT_TRUE(store_->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 200'000))).ok());
  }
  std::string ballast = dir_.path() + "/disk/ballast";
  {
    std::ofstream out(ballast, std::ios::binary);
    std::string block(4096, 'x');
    while (out.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
  }
  int failed = 0;
  for (int i = 100; i < 600; ++i) {
    failed += !store_->Put(KernelKeyOf(i), MakeEntry(BytesOf(i, 2000))).ok();
    failed += !store_->Put(ArtifactKeyOf(i), MakeEntry(BytesOf(i, 200'000))).ok();
  }
  EXPECT_GT(failed, 500);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(store_->Get(KernelKeyOf(i)).ok()) << i;
    EXPECT_TRUE(store_->Get(ArtifactKeyOf(i)).ok()) << i;
  }
  std::filesystem::remove(ballast);
  ASSERT_TRUE(Eventually(
      [this] { return store_->Put(KernelKeyOf(700), MakeEntry(BytesOf(700, 500))).ok(); }));
  EXPECT_TRUE(store_->Put(ArtifactKeyOf(700), MakeEntry(BytesOf(700, 200'000))).ok());
  int64_t entries = Entries(*store_);
  store_.reset();
  ASSERT_NO_FATAL_FAILURE(Open());
  VerifyResult verified = VerifyAll(*MakeVerifyingStore(store_.get()));
  EXPECT_EQ(verified.checked, entries);
  EXPECT_EQ(verified.corrupt, 0);
  store_.reset();
}

}  // namespace
}  // namespace kiln::cache
