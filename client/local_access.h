// How this user's programs are known to a server of the same user on this machine.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kiln {

// What stands in the token file that a server leaves for its own user's programs (proto/base/
// own_server.h), where `server` is a port of this machine without TLS; empty where there is none.
std::string ReadLocalToken(absl::string_view server);

}  // namespace kiln
