// Where a server of the shared tier listens, and what a "redis://" address says.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::cache {

struct Endpoint {
  std::string host;  // a name, or an IPv4 or IPv6 address without brackets
  int port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Endpoint& e) {
    return H::combine(std::move(h), e.host, e.port);
  }
  // "host:6379", "[::1]:6379".
  std::string ToString() const;
};

struct RemoteUrl {
  bool tls = false;
  std::string user;  // empty: the server's default user
  std::string password;
  std::vector<Endpoint> seeds;  // never empty
  int database = 0;
};

// "redis://[[user]:password@]HOST[:PORT][,HOST[:PORT]...][/database]"; "rediss://" for TLS. The
// port is 6379 where there is none; user and password may be percent-encoded. INVALID_ARGUMENT
// otherwise, in a sentence that does not repeat the password.
absl::StatusOr<RemoteUrl> ParseRemoteUrl(absl::string_view text);

}  // namespace kiln::cache
