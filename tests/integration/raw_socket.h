// TCP connections from an address of this machine that a test chooses.
#pragma once

#include <string>

namespace kiln::integration {

// Connects the IPv4 socket `fd` from `from` to `address`, "127.0.0.1:PORT"; false where it cannot.
bool ConnectFrom(int fd, const std::string& from, const std::string& address);

}  // namespace kiln::integration
