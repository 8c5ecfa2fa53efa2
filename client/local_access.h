// How this user's programs are known to a server of the same user on this machine.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/token_file.h"

namespace kiln {

// The token file that a server leaves for its own user's programs (proto/base/own_server.h), where
// `server` is a port of this machine without TLS; empty where there is none.
struct LocalAccess {
  TokenFile file;
  std::string path;
};
LocalAccess ReadLocalAccess(absl::string_view server);

}  // namespace kiln
