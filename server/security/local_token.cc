#include "server/security/local_token.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/own_server.h"
#include "proto/base/signing.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

constexpr size_t kTokenBytes = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<LocalToken>> LocalToken::Make(int port,
                                                             absl::string_view public_key) {
  KILN_ASSIGN_OR_RETURN(const std::string folder, RuntimeFolder());
  const std::string path = LocalTokenFile(folder, port);
  std::string random(kTokenBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(random.data()), kTokenBytes) != 1) {
    return absl::InternalError("OpenSSL gives no random bytes");
  }
  const std::string token = absl::BytesToHexString(random);
  const std::string text = absl::StrCat(
      token, "\n", public_key.empty() ? "" : absl::StrCat(FormatPublicKey(public_key), "\n"));
  // Whoever reads meanwhile has the old one or the new one, whole.
  const std::string written = absl::StrCat(path, ".new");
  unlink(written.c_str());
  const int fd = open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool ok = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) ok = close(fd) == 0 && ok;
  if (!ok || std::rename(written.c_str(), path.c_str()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot write the token file ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<LocalToken>(new LocalToken(path, Sha256(token)));
}

void LocalToken::Remove() {
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

}  // namespace kiln::server
