#include "tests/integration/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace kiln::integration {
namespace {

sockaddr_in SocketAddress(const std::string& host, int port) {
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

}  // namespace

bool ConnectFrom(int fd, const std::string& from, const std::string& address) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  (void)absl::SimpleAtoi(parts.second, &port);  // 0 fails to connect
  const sockaddr_in local = SocketAddress(from, 0);
  const sockaddr_in to = SocketAddress(parts.first, port);
  return bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof(local)) == 0 &&
         connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

}  // namespace kiln::integration
