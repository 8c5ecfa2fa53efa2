// One connection to a server that speaks the Redis protocol.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache/remote/deadline.h"
#include "cache/remote/endpoint.h"
#include "cache/remote/reply.h"
#include "cache/remote/resolver.h"
#include "cache/remote/socket.h"

namespace kiln::cache {

// A command and its arguments, each of any bytes.
using Command = std::vector<absl::string_view>;

struct ConnectionOptions {
  std::string user;
  std::string password;            // empty: no AUTH
  int database = 0;                // 0: no SELECT
  const TlsClient* tls = nullptr;  // null: plain
  Resolver* resolver = nullptr;
};

// Used by one thread at a time.
class Connection {
 public:
  // Connects, authenticates and selects the database. PERMISSION_DENIED where the server refuses
  // that.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Endpoint& endpoint,
                                                          const ConnectionOptions& options,
                                                          SteadyTime deadline);

  // Sends the commands at once and reads a reply for each. After any error the connection is of no
  // more use: what it reads next could be the answer to something else.
  absl::StatusOr<std::vector<Reply>> Exchange(absl::Span<const Command> commands,
                                              const ReplyLimits& limits, SteadyTime deadline);

  // Open, with no answer outstanding.
  bool IsIdle() { return socket_->IsIdle(); }

 private:
  explicit Connection(std::unique_ptr<Socket> socket) : socket_(std::move(socket)) {}
  absl::Status LogIn(const ConnectionOptions& options, SteadyTime deadline);

  const std::unique_ptr<Socket> socket_;
};

}  // namespace kiln::cache
