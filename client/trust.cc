#include "client/trust.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/credentials.h"
#include "client/local_access.h"
#include "client/token_file.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string DefaultPath() {
  if (std::string dir = Variable("XDG_CONFIG_HOME"); !dir.empty()) {
    return absl::StrCat(dir, "/kiln/known_servers");
  }
  if (std::string home = Variable("HOME"); !home.empty()) {
    return absl::StrCat(home, "/.config/kiln/known_servers");
  }
  return "";
}

// Held by one process at a time while it reads and adds. Creates the file and its folder.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (std::filesystem::create_directories(folder, error)) chmod(folder.c_str(), 0700);
    fd_ = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    // Where the file system has no locks, a line may come twice, which does no harm.
    if (fd_ >= 0) flock(fd_, LOCK_EX);
  }
  ~LockedFile() {
    if (fd_ >= 0) close(fd_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  // A line of its own: all of it or nothing.
  bool Add(absl::string_view text) const {
    const off_t end = fd_ < 0 ? -1 : lseek(fd_, 0, SEEK_END);
    if (end < 0) return false;
    char last = '\n';                      // an editor may have left none
    (void)!pread(fd_, &last, 1, end - 1);  // nothing where the file is empty
    const std::string line = absl::StrCat(last == '\n' ? "" : "\n", text, "\n");
    if (write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return true;
    (void)!ftruncate(fd_, end);  // half a line would be an error to whoever reads the file
    return false;
  }

 private:
  int fd_;
};

bool SignedByOneOf(const std::vector<std::string>& keys, const Digest& key, const Digest& digest,
                   absl::string_view signature) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& public_key) {
    return VerifySignature(public_key, kArtifactKind, key, digest, signature).ok();
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<Trust>> Trust::Load(const ClientOptions& options) {
  std::shared_ptr<Trust> trust(new Trust());
  const std::string given =
      options.public_key.empty() ? Variable("KILN_PUBLIC_KEY") : options.public_key;
  for (absl::string_view text : absl::StrSplit(given, ',', absl::SkipWhitespace())) {
    auto key = ParsePublicKey(absl::StripAsciiWhitespace(text));
    KILN_RETURN_IF_ERROR(Annotate(key.status(), "public_key"));
    trust->given_.push_back(*std::move(key));
  }
  trust->given_by_ = "option public_key, KILN_PUBLIC_KEY";
  if (const std::string path = TokenFilePath(options); trust->given_.empty() && !path.empty()) {
    KILN_ASSIGN_OR_RETURN(TokenFile file, ReadTokenFile(path));
    trust->given_ = std::move(file.public_keys);
    trust->given_by_ = path;
  }
  trust->path_ =
      options.known_servers.empty() ? Variable("KILN_KNOWN_SERVERS") : options.known_servers;
  trust->path_given_ = !trust->path_.empty();
  if (trust->path_.empty()) trust->path_ = DefaultPath();
  absl::MutexLock lock(&trust->mu_);
  KILN_RETURN_IF_ERROR(trust->ReadFile());
  return trust;
}

absl::Status Trust::ReadFile() {
  kept_.clear();
  std::ifstream in(path_);
  std::string raw;
  for (int number = 1; std::getline(in, raw); ++number) {
    absl::string_view line = raw;
    std::vector<std::string> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    auto key = words.size() == 2 ? ParsePublicKey(words[1])
                                 : absl::InvalidArgumentError("expected HOST:PORT PUBLIC-KEY");
    KILN_RETURN_IF_ERROR(Annotate(key.status(), absl::StrCat(path_, " line ", number)));
    kept_[words[0]].push_back(*std::move(key));
  }
  return absl::OkStatus();
}

const Trust::Keys* Trust::Known(const std::string& address) const {
  if (!given_.empty()) return &given_;
  if (auto it = kept_.find(address); it != kept_.end()) return &it->second;
  if (auto it = left_.find(address); it != left_.end()) return &it->second;
  auto it = introduced_.find(address);
  return it == introduced_.end() || it->second.empty() ? nullptr : &it->second;
}

absl::Status Trust::KeepFirst(const std::string& address, const std::string& public_key) {
  LockedFile file(path_);
  // Another process may have been first since.
  KILN_RETURN_IF_ERROR(ReadFile());
  if (kept_.contains(address)) return absl::OkStatus();
  if (!file.Add(absl::StrCat(address, " ", FormatPublicKey(public_key)))) {
    Log(LogLevel::kWarning, "the server's public key is kept for this process only",
        {{"server", address}, {"why", absl::StrCat("cannot write ", path_)}});
    return absl::OkStatus();
  }
  kept_[address].push_back(public_key);
  Log(LogLevel::kInfo, "met a server for the first time; its public key is kept",
      {{"server", address}, {"key", FormatPublicKey(public_key)}, {"file", path_}});
  return absl::OkStatus();
}

absl::Status Trust::Introduce(absl::string_view server, absl::string_view public_key) {
  const std::string address = SplitScheme(server).address;
  const bool keeps = !path_.empty() && (path_given_ || !IsLocal(address));
  LocalAccess local = ReadLocalAccess(server);
  absl::MutexLock lock(&mu_);
  left_.erase(address);
  if (!local.file.public_keys.empty()) left_[address] = std::move(local.file.public_keys);
  if (given_.empty() && !kept_.contains(address) && keeps && !public_key.empty()) {
    KILN_RETURN_IF_ERROR(KeepFirst(address, std::string(public_key)));
  }
  Keys& shown = introduced_[address];
  if (IsLocal(address) || shown.empty()) {
    shown.clear();
    if (!public_key.empty()) shown.emplace_back(public_key);
  }
  const Keys* known = Known(address);
  if (known == nullptr || std::find(known->begin(), known->end(), public_key) != known->end()) {
    return absl::OkStatus();
  }
  const std::string what =
      public_key.empty()
          ? absl::StrCat("the server at ", address, " signs nothing, but its public key is known")
          : absl::StrCat("the server at ", address, " has the public key ",
                         FormatPublicKey(public_key), ", which is not the known one");
  std::string where;
  if (!given_.empty()) {
    where = absl::StrCat(" (", given_by_, ")");
  } else if (kept_.contains(address)) {
    where = absl::StrCat("; if its key was replaced on purpose, remove its line from ", path_);
  } else if (left_.contains(address)) {
    where = absl::StrCat("; a server of yours left ", local.path,
                         ": remove it if another one is meant to have the port");
  }
  return absl::UnauthenticatedError(absl::StrCat(what, where));
}

absl::Status Trust::Check(absl::string_view server, const Digest& key, const Digest& digest,
                          absl::string_view signature) const {
  const std::string address = SplitScheme(server).address;
  absl::ReaderMutexLock lock(&mu_);
  const Keys* known = Known(address);
  if (known == nullptr) {
    // A server that signs nothing.
    if (introduced_.contains(address)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("no public key of the server at ", address, " is known"));
  }
  if (signature.empty()) {
    return absl::DataLossError(
        absl::StrCat("the server at ", address, " sent an artifact without a signature"));
  }
  if (SignedByOneOf(*known, key, digest, signature)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the signature of the artifact ", key.ShortHex(),
                                          " is not that of the server at ", address,
                                          ": it is forged or damaged, or server and client are of "
                                          "versions that compute different keys"));
}

absl::Status Trust::CheckKept(const std::vector<std::string>& servers, const Digest& key,
                              const Digest& digest, absl::string_view signature) const {
  absl::ReaderMutexLock lock(&mu_);
  bool any_known = false;
  for (const std::string& server : servers) {
    const Keys* known = Known(SplitScheme(server).address);
    if (known == nullptr) continue;
    any_known = true;
    if (SignedByOneOf(*known, key, digest, signature)) return absl::OkStatus();
  }
  if (!any_known) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the artifact ", key.ShortHex(), " is not signed by a known server"));
}

}  // namespace kiln
