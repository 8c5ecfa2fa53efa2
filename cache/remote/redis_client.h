// Runs commands on the server, or on the cluster's node, that has their key.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/remote/deadline.h"
#include "cache/remote/node.h"

namespace kiln::cache {

struct NodeCounts {
  int closed = 0;
  int half_open = 0;
  int open = 0;
};

// Thread-safe.
class RedisClient {
 public:
  virtual ~RedisClient() = default;

  // `key` is the one key that `command` is about. Follows redirections. An error that the server
  // answers is a reply; a Status, as Node::Exchange has them, means that there was none.
  virtual absl::StatusOr<Reply> Run(absl::string_view key, const Command& command,
                                    const ReplyLimits& limits, SteadyTime deadline) = 0;
  // A result for each command, as Run has it; each is about the key that is its first argument.
  // Those of one server go to it together, those of another after them; `limits.time_per_reply`
  // holds for each server's first reply, too.
  virtual std::vector<absl::StatusOr<Reply>> RunEach(absl::Span<const Command> commands,
                                                     const ReplyLimits& limits,
                                                     SteadyTime deadline) = 0;
  // Servers that are known now, by the state of their breakers.
  virtual NodeCounts Nodes() = 0;
};

struct RedisClientOptions {
  std::vector<Endpoint> seeds;  // not empty
  NodeFactory make_node;
  // For one node's answer to CLUSTER SLOTS, asked in the background.
  absl::Duration slots_timeout = absl::Milliseconds(500);
  // At least this long between two looks at the cluster's slots.
  absl::Duration min_refresh_interval = absl::Milliseconds(500);
};

// Starts as if the seeds were single servers that hold the same: the first that does not fail is
// asked. A redirection tells that they are a cluster; from then on its slots decide, learnt from
// CLUSTER SLOTS in the background after every redirection and while a node fails.
std::unique_ptr<RedisClient> MakeRedisClient(const RedisClientOptions& options);

}  // namespace kiln::cache
