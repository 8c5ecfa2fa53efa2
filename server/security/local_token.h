// Who may call a server that listens on the loopback interface and knows nobody by name: programs
// of the user that runs it, which show what stands in a file that only this user can read.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln::server {

class LocalToken {
 public:
  // A new token, in the file that clients look for (proto/base/own_server.h); one that is there
  // already is another server's that has ended. After it stands the key that this server signs
  // with, 32 bytes: clients take nothing from whoever has the port later. Empty where it signs
  // nothing. FAILED_PRECONDITION, naming the file.
  static absl::StatusOr<std::unique_ptr<LocalToken>> Make(int port, absl::string_view public_key);
  ~LocalToken() { Remove(); }

  const Digest& sha256() const { return sha256_; }
  const std::string& path() const { return path_; }
  // Before the port is given up: from then on the file may be another server's.
  void Remove();

 private:
  LocalToken(std::string path, const Digest& sha256) : path_(std::move(path)), sha256_(sha256) {}
  std::string path_;
  const Digest sha256_;
};

}  // namespace kiln::server
