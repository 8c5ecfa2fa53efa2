#include "client/local_access.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "client/credentials.h"
#include "proto/base/own_server.h"

namespace kiln {

std::string ReadLocalToken(absl::string_view server) {
  const ServerName name = SplitScheme(server);
  int port = 0;
  if (name.scheme == Scheme::kTls || !IsLocal(name.address) ||
      absl::StartsWith(name.address, "unix:") ||
      !absl::SimpleAtoi(name.address.substr(name.address.rfind(':') + 1), &port)) {
    return "";
  }
  const absl::StatusOr<std::string> folder = RuntimeFolder();
  if (!folder.ok()) return "";
  std::string token;
  std::getline(std::ifstream(LocalTokenFile(*folder, port)), token);
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  return printable ? token : "";
}

}  // namespace kiln
