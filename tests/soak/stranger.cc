#include "tests/soak/stranger.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/time/clock.h"
#include "tests/integration/raw_socket.h"

namespace kiln::soak {
Stranger::Stranger(const std::string& address, const std::string& from)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  // A full queue would make a blocking call wait for the server.
  const timeval limit = {.tv_usec = 200000};
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  (void)integration::ConnectFrom(fd_, from, address);  // or is refused
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
