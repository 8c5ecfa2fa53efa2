// A folder of one test's own, removed at its end. Tests of one program run at the same time, each
// in a process of its own: a name that they share below ::testing::TempDir() is one that another
// takes.
#pragma once

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

namespace kiln {

class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / "kiln-test-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      perror("cannot make a temporary folder");
      abort();
    }
  }
  ~TempDir() {
    std::error_code ignored;  // what cannot be removed is left to whoever cleans the folder
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kiln
