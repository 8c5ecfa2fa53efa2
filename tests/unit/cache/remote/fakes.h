// Servers and clients that answer what a test tells them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache/remote/node.h"
#include "cache/remote/redis_client.h"
#include "proto/base/signing.h"

namespace kiln::cache {

Reply StringReply(std::string text);
Reply StatusReply(std::string text);
Reply ErrorReply(std::string text);
Reply IntegerReply(int64_t value);
Reply ArrayReply(std::vector<Reply> elements);
Reply NilReply();
// As CLUSTER SLOTS answers.
Reply SlotsReply(const std::vector<std::pair<std::pair<int, int>, Endpoint>>& ranges);

// A key of its own, made in a temporary folder.
std::unique_ptr<SigningKey> NewSigningKey();

// Commands that came, as their arguments joined by spaces, and what to answer.
using Answer = std::function<absl::StatusOr<Reply>(const std::string& command)>;

class FakeClient final : public RedisClient {
 public:
  explicit FakeClient(Answer answer) : answer_(std::move(answer)) {}
  absl::StatusOr<Reply> Run(absl::string_view key, const Command& command,
                            const ReplyLimits& limits, SteadyTime deadline) override;
  std::vector<absl::StatusOr<Reply>> RunEach(absl::Span<const Command> commands,
                                             const ReplyLimits& limits,
                                             SteadyTime deadline) override;
  NodeCounts Nodes() override { return {}; }
  // The arguments of the last command.
  std::vector<std::string> last() const;
  int calls() const;
  // Of RunEach.
  int batches() const;

 private:
  const Answer answer_;
  mutable absl::Mutex mu_;
  std::vector<std::string> last_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  int batches_ ABSL_GUARDED_BY(mu_) = 0;
};

// Nodes by their port; one that has no answer fails with UNAVAILABLE.
class FakeNodes {
 public:
  void Set(int port, Answer answer);
  void Kill(int port);
  // Commands that reached the node, "ASKING" among them.
  std::vector<std::string> Commands(int port) const;
  // How often the node was sent something.
  int Exchanges(int port) const;
  NodeFactory Factory();

 private:
  class FakeNode;
  struct State;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  friend class FakeNode;

 public:
  FakeNodes();
};

}  // namespace kiln::cache
