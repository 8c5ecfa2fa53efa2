// Folders of caches that could not be read, kept beside the cache until their room is needed. What
// is not a cache, by its FORMAT and by all of its names, is neither moved nor deleted.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kiln::cache {

// Not thread-safe.
class SetAsideFolders {
 public:
  // Finds those of the cache at `path`, "<path>.set-aside-<time>", and measures them.
  explicit SetAsideFolders(std::string path);

  // Renames the cache itself to such a folder, and logs `why`. FAILED_PRECONDITION where it has
  // something in it that is no cache's.
  absl::Status Add(absl::string_view why);
  // Deletes the oldest until the others take at most `max_bytes`.
  void Shrink(int64_t max_bytes);
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Folder {
    std::string path;
    int64_t size_bytes = 0;
  };
  const std::string path_;
  std::deque<Folder> folders_;  // oldest first
  int64_t size_bytes_ = 0;
};

// The version of a cache's files. DATA_LOSS, saying which it is, where it is another; writes it
// where the folder is empty or missing. FAILED_PRECONDITION for a folder that is no cache.
absl::Status CheckFormat(const std::string& path);

}  // namespace kiln::cache
