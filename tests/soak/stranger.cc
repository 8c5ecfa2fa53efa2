#include "tests/soak/stranger.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace kiln::soak {
namespace {

sockaddr_in SocketAddress(const std::string& host, int port) {
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

}  // namespace

Stranger::Stranger(const std::string& address, const std::string& from)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  (void)absl::SimpleAtoi(parts.second, &port);  // 0 fails to connect
  const sockaddr_in local = SocketAddress(from, 0);
  const sockaddr_in to = SocketAddress(parts.first, port);
  // A full queue would make a blocking call wait for the server.
  const timeval limit = {.tv_usec = 200000};
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  (void)bind(fd_, reinterpret_cast<const sockaddr*>(&local), sizeof(local));
  (void)connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to));  // or is refused
}

Stranger::~Stranger() {
  close(fd_);
}

void Stranger::Send(absl::string_view bytes) {
  (void)!send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool Stranger::ClosesWithin(absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  for (absl::Time now = absl::Now(); now < end; now = absl::Now()) {
    pollfd ready = {fd_, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(end - now)) + 1) <= 0) continue;
    char buffer[4096];
    if (recv(fd_, buffer, sizeof(buffer), 0) <= 0) return true;
  }
  return false;
}

void Stranger::ResetAtEnd() {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

}  // namespace kiln::soak
