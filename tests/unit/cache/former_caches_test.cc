#include "cache/former_caches.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "cache/data_dir.h"
#include "tests/temp_dir.h"

namespace kiln::cache {
namespace {

using ::testing::UnorderedElementsAre;
namespace fs = std::filesystem;

constexpr char kOwn[] = "own-00000000000000ff";

class FormerCachesTest : public ::testing::Test {
 protected:
  FormerCachesTest() { Make(kOwn, absl::Hours(24 * 365)); }

  // With a lock and a cache, last written so long ago.
  void Make(const std::string& name, absl::Duration age, const std::string& lock = "17\n") {
    const fs::path folder = fs::path(dir_.path()) / name;
    fs::create_directories(folder / "cache");
    std::ofstream(folder / "cache" / "CURRENT") << std::string(5000, 'x');
    if (!lock.empty()) std::ofstream(folder / "lock") << lock;
    for (const char* path : {"cache/CURRENT", "cache", "lock", "."}) Age(folder / path, age);
  }
  void Age(const fs::path& path, absl::Duration age) {
    const timespec time = absl::ToTimespec(now_ - age);
    const timespec both[] = {time, time};
    utimensat(AT_FDCWD, path.c_str(), both, AT_SYMLINK_NOFOLLOW);
  }
  DeletedCaches Delete(const FormerCachesLimits& limits = {}) {
    return DeleteFormerCaches(dir_.path() + "/" + kOwn, now_, limits);
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  TempDir dir_;
  const absl::Time now_ = absl::Now();
};

TEST_F(FormerCachesTest, OldOnesGoAndYoungOnesAndItsOwnStay) {
  Make("own-0000000000000001", absl::Hours(24 * 15));
  Make("own-0000000000000002", absl::Hours(24 * 13));
  Make("own-0000000000000003", absl::Hours(24 * 15));
  Age(fs::path(dir_.path()) / "own-0000000000000003/cache/CURRENT", absl::Hours(2));
  const DeletedCaches deleted = Delete();
  EXPECT_EQ(deleted.folders, 1);
  EXPECT_GE(deleted.size_bytes, 5000);
  EXPECT_THAT(Names(), UnorderedElementsAre(kOwn, "own-0000000000000002", "own-0000000000000003"));
}

TEST_F(FormerCachesTest, OfManyTheLastUsedStayAndThoseOfADay) {
  for (int i = 1; i <= 5; ++i) Make("own-000000000000000" + std::to_string(i), absl::Hours(20 + i));
  EXPECT_EQ(Delete({.most = 2}).folders, 2) << "three are younger than a day";
  EXPECT_EQ(Delete({.most = 2, .min_age = absl::Hours(1)}).folders, 1);
  EXPECT_THAT(Names(), UnorderedElementsAre(kOwn, "own-0000000000000001", "own-0000000000000002"));
}

TEST_F(FormerCachesTest, WhatIsInUseOrNobodysCacheStays) {
  const absl::Duration old = absl::Hours(24 * 100);
  Make("own-0000000000000001", old);
  auto in_use = DataDir::Open(dir_.path() + "/own-0000000000000001");
  ASSERT_TRUE(in_use.ok()) << in_use.status();
  Make("own-0000000000000001", old, "");  // the lock's time as well
  Make("own-0000000000000002", old, "");
  Make("own-0000000000000003", old, "notes of somebody's\n");
  Make("own-things", old);
  Make("own-000000000000000G", old);
  Make("own-00000000000000044", old);
  Make("cache", old);
  Make("elsewhere", old);
  fs::create_directory_symlink(dir_.path() + "/elsewhere", dir_.path() + "/own-0000000000000005");
  const std::vector<std::string> before = Names();
  EXPECT_EQ(Delete().folders, 0);
  EXPECT_THAT(Names(), ::testing::UnorderedElementsAreArray(before));
  EXPECT_TRUE(fs::exists(dir_.path() + "/elsewhere/cache/CURRENT"));
  in_use->reset();
  EXPECT_EQ(Delete().folders, 1);
}

TEST_F(FormerCachesTest, ADeletionThatWasKilledIsEnded) {
  Make("own-0000000000000001.deleted", absl::Hours(1), "");
  EXPECT_EQ(Delete().folders, 1);
  EXPECT_THAT(Names(), UnorderedElementsAre(kOwn));
}

TEST_F(FormerCachesTest, AServerOfAnotherFolderDeletesNothing) {
  Make("own-0000000000000001", absl::Hours(24 * 100));
  EXPECT_EQ(DeleteFormerCaches(dir_.path() + "/data", now_).folders, 0);
  EXPECT_EQ(DeleteFormerCaches("", now_).folders, 0);
}

}  // namespace
}  // namespace kiln::cache
