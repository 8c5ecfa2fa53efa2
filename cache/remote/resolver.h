// Host names to addresses, within a time limit.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/remote/deadline.h"
#include "cache/remote/endpoint.h"

namespace kiln::cache {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;
};

// Thread-safe. getaddrinfo(3) has no time limit of its own, so it runs on a thread that nobody
// waits for; there is at most one for each host, and its late answer serves the next caller.
class Resolver {
 public:
  Resolver();

  // Numeric addresses at once. DEADLINE_EXCEEDED where the name service is slow, UNAVAILABLE where
  // it does not know the host. An answer is good for half a minute, and beyond that where there is
  // no newer one.
  absl::StatusOr<std::vector<SocketAddress>> Resolve(const Endpoint& endpoint, SteadyTime deadline);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with look-ups that outlive this
};

}  // namespace kiln::cache
