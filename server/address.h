// "HOST:PORT", as flags and messages have it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::server {

struct Address {
  std::string host;  // without brackets; empty: no address at all ("none")
  int port = 0;      // 0 takes a free one

  std::string ToString() const;
  bool IsNone() const { return host.empty(); }
  // Nothing but this machine can connect.
  bool IsLoopback() const;
};

// "127.0.0.1:7461", "[::1]:7461", "localhost:0", "none". INVALID_ARGUMENT otherwise.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace kiln::server
