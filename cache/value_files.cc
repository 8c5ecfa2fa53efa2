#include "cache/value_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cache/rocksdb_format.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr int kFolderMode = 0755;
constexpr int kFileMode = 0644;

absl::Status FromErrno(int error, absl::string_view what, const std::string& path) {
  std::string message = absl::StrCat(what, " ", path, ": ", std::generic_category().message(error));
  if (error == ENOENT) return absl::NotFoundError(message);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), kFolderMode) == 0 || errno == EEXIST) return absl::OkStatus();
  return FromErrno(errno, "cannot make", path);
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FromErrno(errno, "cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// False where the file ends before.
absl::StatusOr<bool> ReadAll(int fd, char* out, size_t size, const std::string& path) {
  while (size > 0) {
    ssize_t got = read(fd, out, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno(errno, "cannot read", path);
    if (got == 0) return false;
    out += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return FromErrno(errno, "cannot move", from);
}

// Names in a folder; none where it is missing.
std::vector<std::string> NamesIn(const std::string& path) {
  std::vector<std::string> names;
  DIR* folder = opendir(path.c_str());
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder)) names.emplace_back(entry->d_name);
  closedir(folder);
  return names;
}

}  // namespace

std::string ValueFiles::PlaceOf(const Key& key) const {
  std::string hex = key.digest.ToHex();
  return absl::StrCat(root_, "/", kFilesFolder, "/", hex.substr(0, 2), "/", FileNameOf(key));
}

std::string ValueFiles::MovingOf(const Key& key) const {
  return absl::StrCat(root_, "/", kMovingFolder, "/", FileNameOf(key));
}

absl::Status ValueFiles::Prepare() const {
  KILN_RETURN_IF_ERROR(MakeFolder(root_));
  KILN_RETURN_IF_ERROR(MakeFolder(absl::StrCat(root_, "/", kMovingFolder)));
  return MakeFolder(absl::StrCat(root_, "/", kFilesFolder));
}

absl::StatusOr<EntryPtr> ValueFiles::Read(const Key& key) const {
  std::string path = PlaceOf(key);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FromErrno(errno, "cannot open", path);
  absl::Cleanup close_file = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return FromErrno(errno, "cannot read", path);
  if (info.st_size < static_cast<off_t>(kDigestBytes)) {
    return absl::DataLossError(absl::StrCat(path, " is cut short"));
  }
  auto entry = std::make_shared<Entry>();
  entry->bytes.resize(static_cast<size_t>(info.st_size) - kDigestBytes);
  auto* digest = reinterpret_cast<char*>(entry->digest.bytes.data());
  KILN_ASSIGN_OR_RETURN(bool whole, ReadAll(fd, digest, kDigestBytes, path));
  if (whole) {
    KILN_ASSIGN_OR_RETURN(whole, ReadAll(fd, entry->bytes.data(), entry->bytes.size(), path));
  }
  if (!whole) return absl::DataLossError(absl::StrCat(path, " is cut short"));
  return entry;
}

absl::Status ValueFiles::Write(const Key& key, const Entry& entry) const {
  std::string path = MovingOf(key);
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kFileMode);
  if (fd < 0) return FromErrno(errno, "cannot make", path);
  absl::Status status = WriteAll(fd, entry.digest.view(), path);
  if (status.ok()) status = WriteAll(fd, entry.bytes, path);
  if (close(fd) != 0 && status.ok()) status = FromErrno(errno, "cannot write", path);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

absl::Status ValueFiles::Publish(const Key& key) const {
  std::string place = PlaceOf(key);
  absl::Status moved = Rename(MovingOf(key), place);
  if (!absl::IsNotFound(moved)) return moved;
  // The first value of its folder.
  KILN_RETURN_IF_ERROR(MakeFolder(place.substr(0, place.rfind('/'))));
  return Rename(MovingOf(key), place);
}

absl::Status ValueFiles::Retire(const Key& key) const {
  return Rename(PlaceOf(key), MovingOf(key));
}

absl::Status ValueFiles::Discard(const Key& key) const {
  std::string path = MovingOf(key);
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return FromErrno(errno, "cannot delete", path);
}

absl::Status ValueFiles::Settle(const std::function<bool(const Key&)>& wanted) const {
  for (const std::string& name : NamesIn(absl::StrCat(root_, "/", kMovingFolder))) {
    std::optional<Key> key = KeyOfFileName(name);
    if (!key) continue;
    KILN_RETURN_IF_ERROR(wanted(*key) ? Publish(*key) : Discard(*key));
  }
  return absl::OkStatus();
}

void ValueFiles::ForEach(const std::function<bool(const Key&)>& visit) const {
  std::string files = absl::StrCat(root_, "/", kFilesFolder);
  for (const std::string& folder : NamesIn(files)) {
    if (folder[0] == '.') continue;
    for (const std::string& name : NamesIn(absl::StrCat(files, "/", folder))) {
      std::optional<Key> key = KeyOfFileName(name);
      if (key && !visit(*key)) return;
    }
  }
}

void ValueFiles::Delete(const Key& key) const {
  unlink(PlaceOf(key).c_str());
}

void ValueFiles::DeleteAll() const {
  for (const std::string& name : NamesIn(absl::StrCat(root_, "/", kMovingFolder))) {
    if (std::optional<Key> key = KeyOfFileName(name)) unlink(MovingOf(*key).c_str());
  }
  ForEach([this](const Key& key) {
    Delete(key);
    return true;
  });
  const std::string files = absl::StrCat(root_, "/", kFilesFolder);
  for (const std::string& name : NamesIn(files)) {
    if (name[0] != '.') rmdir(absl::StrCat(files, "/", name).c_str());
  }
  rmdir(files.c_str());
  rmdir(absl::StrCat(root_, "/", kMovingFolder).c_str());
}

int64_t DiskUsageBytes(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return 0;
  int64_t total = static_cast<int64_t>(info.st_blocks) * 512;
  if (!S_ISDIR(info.st_mode)) return total;
  for (const std::string& name : NamesIn(path)) {
    if (name != "." && name != "..") total += DiskUsageBytes(absl::StrCat(path, "/", name));
  }
  return total;
}

}  // namespace kiln::cache
