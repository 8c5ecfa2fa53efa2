#include "cache/data_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/temp_dir.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;

TEST(DataDirTest, MakesMissingFolders) {
  TempDir dir;
  std::string path = dir.path() + "/a/b";
  auto data_dir = DataDir::Open(path);
  ASSERT_TRUE(data_dir.ok()) << data_dir.status();
  EXPECT_EQ((*data_dir)->path(), path);
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST(DataDirTest, RefusesAFolderInUseAndNamesItAndItsOwner) {
  TempDir dir;
  auto first = DataDir::Open(dir.path());
  ASSERT_TRUE(first.ok()) << first.status();
  // flock(2) belongs to the open file, so a second Open in one process is refused as another
  // process's would be.
  auto second = DataDir::Open(dir.path());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAborted);
  std::string message(second.status().message());
  EXPECT_THAT(message, HasSubstr(dir.path()));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("process ", getpid())));
}

TEST(DataDirTest, IsFreeAgainOnceReleased) {
  TempDir dir;
  for (int i = 0; i < 2; ++i) {
    auto data_dir = DataDir::Open(dir.path());
    EXPECT_TRUE(data_dir.ok()) << data_dir.status();
  }
}

TEST(DataDirTest, AStaleLockFileOfADeadOwnerDoesNotCount) {
  TempDir dir;
  std::ofstream(dir.path() + "/lock") << "1\n";
  EXPECT_TRUE(DataDir::Open(dir.path()).ok());
}

TEST(DataDirTest, ALockFileThatIsNotAServersStaysAsItIs) {
  TempDir dir;
  std::ofstream(dir.path() + "/lock") << "1 hour\n";
  auto data_dir = DataDir::Open(dir.path());
  EXPECT_EQ(data_dir.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(data_dir.status().message()), HasSubstr(dir.path() + "/lock"));
  std::string text;
  std::getline(std::ifstream(dir.path() + "/lock"), text);
  EXPECT_EQ(text, "1 hour");
}

TEST(DataDirTest, RefusesAPathThatIsAFileOrUnderOne) {
  TempDir dir;
  std::string path = dir.path() + "/file";
  std::ofstream(path) << "x";
  for (const std::string& wrong : {path, path + "/data"}) {
    auto data_dir = DataDir::Open(wrong);
    EXPECT_EQ(data_dir.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(data_dir.status().message()), HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace kiln::cache
