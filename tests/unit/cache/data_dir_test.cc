#include "cache/data_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/unit/cache/temp_dir.h"

namespace kiln::cache {
namespace {

using ::testing::HasSubstr;

TEST(DataDir, IsMadeWhereMissing) {
  TempDir dir;
  std::string path = dir.path() + "/a/b";
  ASSERT_TRUE(DataDir::Open(path).ok());
  EXPECT_TRUE(std::filesystem::is_directory(path));
}

TEST(DataDir, ASecondOwnerIsRefusedWithTheNameOfTheFirst) {
  TempDir dir;
  auto first = DataDir::Open(dir.path());
  ASSERT_TRUE(first.ok());
  absl::Status second = DataDir::Open(dir.path()).status();
  EXPECT_TRUE(absl::IsAborted(second));
  EXPECT_THAT(std::string(second.message()), HasSubstr(dir.path()));
  EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(getpid())));
  first->reset();
  EXPECT_TRUE(DataDir::Open(dir.path()).ok());
}

TEST(DataDir, APathUnderAFileIsAnError) {
  absl::Status status = DataDir::Open("/dev/null/data").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("/dev/null/data"));
}

}  // namespace
}  // namespace kiln::cache
