// A fresh folder under the temporary folder, removed at the end.
#pragma once

#include <string>

namespace kiln::integration {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace kiln::integration
