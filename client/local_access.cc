#include "client/local_access.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "client/credentials.h"
#include "proto/base/own_server.h"

namespace kiln {

LocalAccess ReadLocalAccess(absl::string_view server) {
  const ServerName name = SplitScheme(server);
  int port = 0;
  if (name.scheme == Scheme::kTls || !IsLocal(name.address) ||
      absl::StartsWith(name.address, "unix:") ||
      !absl::SimpleAtoi(name.address.substr(name.address.rfind(':') + 1), &port)) {
    return {};
  }
  const absl::StatusOr<std::string> folder = RuntimeFolder();
  if (!folder.ok()) return {};
  const std::string path = LocalTokenFile(*folder, port);
  absl::StatusOr<TokenFile> file = ReadTokenFile(path);
  return file.ok() ? LocalAccess{*std::move(file), path} : LocalAccess();
}

}  // namespace kiln
