// The server's data directory, owned by one process at a time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kiln::cache {

// Holds the directory until destroyed; a process that dies lets it go.
class DataDir {
 public:
  // Makes the directory where it is missing. ABORTED, naming the directory and the owner's process
  // id, where another process holds it; FAILED_PRECONDITION where it cannot be made or written, or
  // has a file "lock" that is somebody else's.
  static absl::StatusOr<std::unique_ptr<DataDir>> Open(const std::string& path);
  ~DataDir();
  DataDir(const DataDir&) = delete;
  DataDir& operator=(const DataDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  DataDir(std::string path, int lock_fd);
  const std::string path_;
  const int lock_fd_;
};

}  // namespace kiln::cache
