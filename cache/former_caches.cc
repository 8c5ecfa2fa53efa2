#include "cache/former_caches.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cache/data_dir.h"
#include "proto/base/own_server.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kDoomed = ".deleted";

struct Former {
  fs::path path;
  absl::Time last_used;
  bool is_doomed = false;  // a deletion that did not end
};

bool IsOwn(const fs::path& path, mode_t kind) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0 && (found.st_mode & S_IFMT) == kind &&
         found.st_uid == geteuid();
}

// When a file of the folder, or of one in it, was last written: a server writes when it starts,
// when it keeps something, and when it ends.
absl::Time LastWritten(const fs::path& folder) {
  absl::Time last = absl::InfinitePast();
  const auto look = [&last](const fs::path& path) {
    struct stat found = {};
    if (lstat(path.c_str(), &found) == 0) {
      last = std::max(last, absl::TimeFromTimespec(found.st_mtim));
    }
  };
  look(folder);
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::none, error), end;
  while (!error && it != end) {
    look(it->path());
    if (it.depth() >= 1) it.disable_recursion_pending();
    it.increment(error);
  }
  return last;
}

std::vector<Former> FindFormer(const fs::path& own) {
  std::vector<Former> found;
  std::error_code error;
  fs::directory_iterator it(own.parent_path(), error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string file = it->path().filename();
    if (file == own.filename()) continue;
    absl::string_view name = file;
    const bool is_doomed = absl::ConsumeSuffix(&name, kDoomed);
    if (!IsOwnDataDir(name) || !IsOwn(it->path(), S_IFDIR)) continue;
    if (!is_doomed && !IsOwn(it->path() / "lock", S_IFREG)) continue;
    found.push_back({it->path(), LastWritten(it->path()), is_doomed});
  }
  std::sort(found.begin(), found.end(),
            [](const Former& a, const Former& b) { return a.last_used > b.last_used; });
  return found;
}

int64_t SizeBytes(const fs::path& folder) {
  int64_t size_bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::none, error), end;
  for (; !error && it != end; it.increment(error)) {
    struct stat found = {};
    if (lstat(it->path().c_str(), &found) == 0) size_bytes += int64_t{512} * found.st_blocks;
  }
  return size_bytes;
}

void Delete(const Former& former, DeletedCaches& deleted) {
  std::error_code error;
  fs::path path = former.path;
  std::unique_ptr<DataDir> lock;
  if (!former.is_doomed) {
    auto opened = DataDir::Open(path);
    if (!opened.ok()) return;  // in use, or its lock is somebody else's
    lock = *std::move(opened);
    path += std::string(kDoomed);
    fs::rename(former.path, path, error);
    if (error) return;
  }
  const int64_t size_bytes = SizeBytes(path);
  fs::remove_all(path, error);
  if (error) return;
  ++deleted.folders;
  deleted.size_bytes += size_bytes;
}

}  // namespace

DeletedCaches DeleteFormerCaches(const std::string& data_dir, absl::Time now,
                                 const FormerCachesLimits& limits) {
  DeletedCaches deleted;
  const fs::path own(data_dir);
  if (!IsOwnDataDir(own.filename().native())) return deleted;
  int kept = 0;
  for (const Former& former : FindFormer(own)) {
    const absl::Duration age = now - former.last_used;
    const bool stays =
        !former.is_doomed && age < limits.max_age && (kept < limits.most || age < limits.min_age);
    if (stays) {
      ++kept;
    } else {
      Delete(former, deleted);
    }
  }
  return deleted;
}

}  // namespace kiln::cache
