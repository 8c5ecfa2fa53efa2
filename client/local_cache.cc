#include "client/local_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/base/log.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kMagic = "KILNLOC1";
constexpr absl::string_view kSuffix = ".kiln";
constexpr size_t kKeyDigits = 64;  // in hex
constexpr absl::string_view kMarker = "KILN_LOCAL_CACHE";
constexpr absl::string_view kMarkerText =
    "Kiln made this folder, and deletes files of its own names in it.\n";
constexpr size_t kHeaderBytes = 8 + 32 + kSignatureBytes;
constexpr int64_t kMaxEntryBytes = int64_t{2} << 30;
constexpr absl::Duration kLockLimit = absl::Seconds(1);  // writing is worth no longer wait
constexpr absl::Duration kAbandoned = absl::Hours(1);    // a file that a dead process was writing

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status Error(absl::string_view what, absl::string_view path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("local cache: cannot ", what, " ", path));
}

// What the disk does not let Kiln do now, and may later.
absl::Status NotNow(absl::string_view what, absl::string_view path) {
  return absl::UnavailableError(Error(what, path).message());
}

absl::StatusOr<std::string> ReadAll(int fd, int64_t size, const std::string& path) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = read(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error("read", path);
    if (count == 0) return absl::DataLossError(absl::StrCat("local cache: ", path, " is cut off"));
    done += static_cast<size_t>(count);
  }
  return bytes;
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error("write", path);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalEntry> Decode(absl::string_view file, const std::string& path) {
  auto damaged = [&path] {
    return absl::DataLossError(absl::StrCat("local cache: ", path, " is damaged"));
  };
  if (file.size() < kHeaderBytes || !absl::StartsWith(file, kMagic)) return damaged();
  LocalEntry entry;
  KILN_ASSIGN_OR_RETURN(entry.digest, Digest::FromBytes(file.substr(kMagic.size(), 32)));
  absl::string_view signature = file.substr(kMagic.size() + 32, kSignatureBytes);
  const bool is_signed =
      std::any_of(signature.begin(), signature.end(), [](char byte) { return byte != '\0'; });
  if (is_signed) entry.signature = std::string(signature);
  entry.bytes = std::string(file.substr(kHeaderBytes));
  if (Sha256(entry.bytes) != entry.digest) return damaged();
  return entry;
}

std::string Encode(const LocalEntry& entry) {
  std::string signature = entry.signature;
  signature.resize(kSignatureBytes, '\0');
  return absl::StrCat(kMagic, entry.digest.view(), signature, entry.bytes);
}

struct Listed {
  fs::path path;
  fs::file_time_type used;
  int64_t bytes = 0;
};

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

// Names as PathOf and Put make them: of an entry, or with a number after it of one being written.
enum class Name { kForeign, kEntry, kDraft };

Name NameOf(absl::string_view name, absl::string_view folder) {
  if (!IsHex(name.substr(0, kKeyDigits), kKeyDigits) || !absl::StartsWith(name, folder)) {
    return Name::kForeign;
  }
  name.remove_prefix(kKeyDigits);
  if (!absl::ConsumePrefix(&name, kSuffix)) return Name::kForeign;
  if (name.empty()) return Name::kEntry;
  const bool number = name.size() > 1 && name[0] == '.' &&
                      std::all_of(name.begin() + 1, name.end(), absl::ascii_isdigit);
  return number ? Name::kDraft : Name::kForeign;
}

// The entries and drafts in the folder's own subfolders; drafts that a dead process left are
// removed. What has another name, a link or a deeper folder is not Kiln's: neither seen nor
// counted.
std::vector<Listed> ListFiles(const std::string& root) {
  std::vector<Listed> files;
  std::error_code error;
  const auto abandoned = fs::file_time_type::clock::now() - absl::ToChronoSeconds(kAbandoned);
  for (fs::directory_iterator folder(root, error), end; !error && folder != end;
       folder.increment(error)) {
    std::error_code gone;  // by another process
    const std::string prefix = folder->path().filename();
    if (!IsHex(prefix, 2) || !fs::is_directory(folder->symlink_status(gone))) continue;
    for (fs::directory_iterator it(folder->path(), gone); !gone && it != end; it.increment(gone)) {
      const Name name = NameOf(it->path().filename().native(), prefix);
      std::error_code missed;
      if (name == Name::kForeign || !fs::is_regular_file(it->symlink_status(missed))) continue;
      const auto used = it->last_write_time(missed);
      const auto size = it->file_size(missed);
      if (missed) continue;
      if (name == Name::kDraft && used < abandoned) {
        fs::remove(it->path(), missed);
      } else {
        files.push_back({it->path(), used, static_cast<int64_t>(size)});
      }
    }
  }
  return files;
}

// Takes a folder that is Kiln's or empty; an empty one is marked.
absl::Status Mark(const std::string& folder) {
  const std::string marker = absl::StrCat(folder, "/", kMarker);
  struct stat info;
  if (lstat(marker.c_str(), &info) == 0) return absl::OkStatus();
  std::error_code error;
  const bool empty = fs::is_empty(folder, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("local cache: cannot list ", folder, ": ", error.message()));
  }
  // Another process may have marked it between the two looks.
  if (!empty && lstat(marker.c_str(), &info) == 0) return absl::OkStatus();
  if (!empty) {
    return absl::FailedPreconditionError(absl::StrCat(
        "local cache: ", folder, " has files in it and no file ", kMarker,
        ", so Kiln did not make it, and a cache deletes what is old; name a folder that is new"));
  }
  File file(open(marker.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.ok()) return NotNow("write", marker);
  return WriteAll(file.fd(), kMarkerText, marker).ok() ? absl::OkStatus() : NotNow("write", marker);
}

// Makes the folder where there is none; looks at whose it is.
absl::Status Prepare(const std::string& folder) {
  std::error_code error;
  const fs::path parent = fs::path(folder).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return NotNow("make the folder", folder);
  }
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) return Error("look at", folder);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("local cache: ", folder, " is no folder"));
  }
  if ((info.st_uid != geteuid() && info.st_uid != 0) || (info.st_mode & 0022) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("local cache: others may write to ", folder,
                     ", and code is loaded from it; make it yours alone (chmod 700)"));
  }
  return Mark(folder);
}

}  // namespace

absl::StatusOr<LocalCacheOptions> ParseLocalCache(absl::string_view text) {
  LocalCacheOptions options;
  const size_t colon = text.rfind(':');
  options.folder = std::string(text.substr(0, colon));
  if (colon != absl::string_view::npos) {
    static constexpr std::pair<absl::string_view, int64_t> kUnits[] = {
        {"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20}, {"GiB", int64_t{1} << 30}};
    absl::string_view size = text.substr(colon + 1);
    int64_t unit = 1, number = 0;
    for (const auto& [name, bytes] : kUnits) {
      if (absl::EndsWith(size, name)) {
        unit = bytes;
        size.remove_suffix(name.size());
        break;
      }
    }
    if (!absl::SimpleAtoi(size, &number) || number <= 0 ||
        __builtin_mul_overflow(number, unit, &options.max_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "local cache '", text, "': expected DIR or DIR:SIZE, as in /var/cache/kiln:4GiB"));
    }
  }
  if (options.folder.empty()) return absl::InvalidArgumentError("local cache: no folder is named");
  return options;
}

LocalCache::LocalCache(LocalCacheOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<LocalCache>> LocalCache::Open(LocalCacheOptions options) {
  std::unique_ptr<LocalCache> cache(new LocalCache(std::move(options)));
  const absl::Status prepared = Prepare(cache->options_.folder);
  cache->ready_ = prepared.ok();
  if (!prepared.ok() && !absl::IsUnavailable(prepared)) return prepared;
  if (!prepared.ok()) Log(LogLevel::kWarning, prepared.message(), {{"so", "nothing is kept"}});
  return cache;
}

std::string LocalCache::PathOf(const Digest& key) const {
  const std::string hex = key.ToHex();
  return absl::StrCat(options_.folder, "/", hex.substr(0, 2), "/", hex, kSuffix);
}

absl::StatusOr<LocalEntry> LocalCache::Get(const Digest& key) {
  if (!ready_) return absl::NotFoundError("local cache: it is not there yet");
  const std::string path = PathOf(key);
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.ok()) return Error("read", path);
  struct stat info;
  if (fstat(file.fd(), &info) != 0) return Error("look at", path);
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxEntryBytes) {
    return absl::DataLossError(absl::StrCat("local cache: ", path, " is no entry"));
  }
  absl::StatusOr<std::string> bytes = ReadAll(file.fd(), info.st_size, path);
  absl::StatusOr<LocalEntry> entry =
      bytes.ok() ? Decode(*bytes, path) : absl::StatusOr<LocalEntry>(bytes.status());
  if (!entry.ok()) {
    Remove(key);
    return entry.status();
  }
  futimens(file.fd(), nullptr);  // used now; where that is not allowed it only counts as older
  return entry;
}

absl::StatusOr<int> LocalCache::Lock() const {
  const std::string path = absl::StrCat(options_.folder, "/lock");
  File file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.ok()) return Error("lock", path);
  const absl::Time deadline = absl::Now() + kLockLimit;
  while (flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Error("lock", path);
    if (absl::Now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("local cache: another process holds ", path, " for too long"));
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return file.Release();
}

void LocalCache::MakeRoom(int64_t more) const {
  std::vector<Listed> files = ListFiles(options_.folder);
  int64_t bytes = more;
  for (const Listed& file : files) bytes += file.bytes;
  if (bytes <= options_.max_bytes) return;
  std::sort(files.begin(), files.end(),
            [](const Listed& a, const Listed& b) { return a.used < b.used; });
  for (const Listed& file : files) {
    if (bytes <= options_.max_bytes) break;
    std::error_code error;
    if (fs::remove(file.path, error)) bytes -= file.bytes;
  }
}

absl::Status LocalCache::Put(const Digest& key, const LocalEntry& entry) {
  const std::string bytes = Encode(entry);
  if (static_cast<int64_t>(bytes.size()) > options_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "local cache: the artifact is larger than the limit of ", options_.max_bytes, " bytes"));
  }
  absl::MutexLock one_of_this_object(&mu_);
  // Not there yet, or removed since.
  if (!ready_ || access(options_.folder.c_str(), F_OK) != 0) {
    KILN_RETURN_IF_ERROR(Prepare(options_.folder));
    ready_ = true;
  }
  KILN_ASSIGN_OR_RETURN(int lock_fd, Lock());
  const File lock(lock_fd);  // until the entry is there: room that is made is nobody else's
  MakeRoom(static_cast<int64_t>(bytes.size()));
  const std::string path = PathOf(key);
  const std::string folder = path.substr(0, path.rfind('/'));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return Error("make the folder", folder);
  // Process numbers do not tell containers apart that share a folder.
  const std::string temporary = absl::StrCat(path, ".", std::random_device{}());
  absl::Status written;
  {
    File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.ok()) return Error("write", temporary);
    written = WriteAll(file.fd(), bytes, temporary);
    if (written.ok() && fdatasync(file.fd()) != 0) written = Error("write", temporary);
  }
  if (written.ok() && rename(temporary.c_str(), path.c_str()) != 0) written = Error("write", path);
  if (!written.ok()) unlink(temporary.c_str());
  return written;
}

void LocalCache::Remove(const Digest& key) {
  unlink(PathOf(key).c_str());
}

}  // namespace kiln
