#include "tests/integration/temp_dir.h"

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

namespace kiln::integration {

TempDir::TempDir() : path_(std::filesystem::temp_directory_path() / "kiln-integration-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) {
    perror("cannot make a temporary folder");
    abort();
  }
}

TempDir::~TempDir() {
  std::error_code ignored;  // what cannot be removed is left to whoever cleans the folder
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace kiln::integration
