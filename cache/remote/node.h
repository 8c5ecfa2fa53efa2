// One server of the shared tier: connections that are kept, and a breaker for when it fails.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/remote/breaker.h"
#include "cache/remote/connection.h"
#include "cache/remote/deadline.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/reply.h"

namespace kiln::cache {

// Thread-safe.
class Node {
 public:
  virtual ~Node() = default;

  // One reply for each command, in order; an error that the server answers is a reply. UNAVAILABLE,
  // DEADLINE_EXCEEDED, PERMISSION_DENIED (log-in), DATA_LOSS (no such protocol) or
  // RESOURCE_EXHAUSTED (a reply over the limit) otherwise, never later than `deadline` by more than
  // a moment; at once while the breaker is open.
  virtual absl::StatusOr<std::vector<Reply>> Exchange(absl::Span<const Command> commands,
                                                      const ReplyLimits& limits,
                                                      SteadyTime deadline) = 0;
  virtual BreakerState breaker() const = 0;
};

using NodeFactory = std::function<std::shared_ptr<Node>(const Endpoint&)>;

struct NodeOptions {
  ConnectionOptions connection;
  // Of name look-up, TCP, TLS and log-in together.
  absl::Duration connect_timeout = absl::Milliseconds(50);
  // At once; an exchange that finds none free waits for one.
  int max_connections = 32;
  BreakerOptions breaker;
};

std::shared_ptr<Node> MakeNode(const Endpoint& endpoint, const NodeOptions& options);

}  // namespace kiln::cache
