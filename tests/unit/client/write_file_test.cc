// Files that commands write: whole under their names, or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "tests/temp_dir.h"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WriteFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  long Files() const {
    return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator());
  }

  const TempDir folder_;
};

// No file of this process grows beyond that.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*const handler_)(int);
  rlimit before_ = {};
};

TEST_F(WriteFileTest, WhereThereIsNoRoomThereIsNoFileOrTheOneOfBefore) {
  ASSERT_TRUE(WriteFile(Path("old"), "before").ok());
  const FileLimit full(4096);
  for (const char* name : {"old", "new"}) {
    const absl::Status status = WriteFile(Path(name), std::string(10000, 'x'));
    EXPECT_THAT(status.message(), AllOf(HasSubstr(Path(name)), HasSubstr("File too large")));
  }
  EXPECT_EQ(Read(Path("old")), "before");
  EXPECT_EQ(Files(), 1);
}

TEST_F(WriteFileTest, AFileKeepsItsLinksAndItsMode) {
  ASSERT_TRUE(WriteFile(Path("file"), "first").ok());
  ASSERT_EQ(chmod(Path("file").c_str(), 0640), 0);
  fs::create_symlink("file", Path("link"));
  ASSERT_TRUE(WriteFile(Path("link"), "second").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(Read(Path("file")), "second");
  EXPECT_EQ(static_cast<int>(fs::status(Path("file")).permissions()), 0640);
  EXPECT_EQ(Files(), 2);
}

TEST_F(WriteFileTest, WhatIsNoFileIsWrittenToAsItIs) {
  EXPECT_TRUE(WriteFile("/dev/null", "text").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(WriteFile("/dev/full", "text").message(), HasSubstr("No space left"));
  EXPECT_THAT(WriteFile(folder_.path(), "text").message(), HasSubstr("Is a directory"));
  EXPECT_THAT(WriteFile(Path("none/file"), "text").message(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace kiln::cli
