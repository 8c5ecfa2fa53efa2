#include "cache/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln::cache {
namespace {

// What is in the lock file: the process id that the owner wrote there, for the message.
std::string ReadOwner(int fd) {
  char buffer[32];
  ssize_t n = pread(fd, buffer, sizeof(buffer), 0);
  if (n <= 0) return "";
  return std::string(absl::StripSuffix(absl::string_view(buffer, static_cast<size_t>(n)), "\n"));
}

bool IsProcessId(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDir>> DataDir::Open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the data directory ", path, ": ", error.message()));
  }
  std::string lock_path = absl::StrCat(path, "/lock");
  int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write to the data directory ", path, ": ", strerror(errno)));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    int lock_errno = errno;
    const std::string owner = ReadOwner(fd);
    close(fd);
    if (lock_errno != EWOULDBLOCK) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot lock the data directory ", path, ": ", strerror(lock_errno)));
    }
    return absl::AbortedError(absl::StrCat("the data directory ", path, " is in use by process ",
                                           owner.empty() ? "unknown" : owner));
  }
  if (!IsProcessId(ReadOwner(fd))) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(
        "the file ", lock_path, " is not Kiln's: name another data directory, or move it away"));
  }
  std::string pid = absl::StrCat(getpid(), "\n");
  // Only for the message above: a failure to write it changes nothing.
  if (ftruncate(fd, 0) == 0) [[maybe_unused]]
    ssize_t written = pwrite(fd, pid.data(), pid.size(), 0);
  return std::unique_ptr<DataDir>(new DataDir(path, fd));
}

DataDir::DataDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

DataDir::~DataDir() {
  close(lock_fd_);
}

}  // namespace kiln::cache
