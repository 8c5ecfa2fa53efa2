#include "cache/remote/node.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

// The server is there and says that it serves nobody: as good as away. (CLUSTERDOWN is not among
// them: it can be about one slot.)
bool ServesNobody(const std::vector<Reply>& replies) {
  for (const Reply& reply : replies) {
    if (!reply.is_error()) continue;
    for (absl::string_view word : {"LOADING", "BUSY", "MASTERDOWN", "NOAUTH"}) {
      if (absl::StartsWith(reply.text, word)) return true;
    }
  }
  return false;
}

class PooledNode final : public Node {
 public:
  PooledNode(const Endpoint& endpoint, const NodeOptions& options)
      : endpoint_(endpoint), options_(options), breaker_(options.breaker) {}

  absl::StatusOr<std::vector<Reply>> Exchange(absl::Span<const Command> commands,
                                              const ReplyLimits& limits,
                                              SteadyTime deadline) override {
    if (!breaker_.Admit(std::chrono::steady_clock::now())) {
      return absl::UnavailableError(
          absl::StrCat(endpoint_.ToString(), " failed lately and is left alone for a while"));
    }
    absl::StatusOr<std::vector<Reply>> replies = TryExchange(commands, limits, deadline);
    // A reply over the limit says nothing against the server: others may share larger entries.
    const bool ok =
        replies.ok() ? !ServesNobody(*replies) : absl::IsResourceExhausted(replies.status());
    if (breaker_.Done(ok, std::chrono::steady_clock::now())) LogChange(ok, replies);
    if (replies.ok()) return replies;
    return absl::Status(replies.status().code(),
                        absl::StrCat(endpoint_.ToString(), ": ", replies.status().message()));
  }

  BreakerState breaker() const override { return breaker_.state(); }

 private:
  absl::StatusOr<std::vector<Reply>> TryExchange(absl::Span<const Command> commands,
                                                 const ReplyLimits& limits, SteadyTime deadline) {
    KILN_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Take(deadline));
    absl::StatusOr<std::vector<Reply>> replies = connection->Exchange(commands, limits, deadline);
    if (!replies.ok()) connection.reset();
    GiveBack(std::move(connection));
    return replies;
  }

  // An idle connection that is still good, else a new one. Its place counts until GiveBack.
  absl::StatusOr<std::unique_ptr<Connection>> Take(SteadyTime deadline) {
    {
      absl::MutexLock lock(&mu_);
      auto has_place = [this] {
        mu_.AssertReaderHeld();
        return in_use_ < options_.max_connections;
      };
      if (!mu_.AwaitWithTimeout(absl::Condition(&has_place), TimeLeft(deadline))) {
        return absl::DeadlineExceededError("every connection is in use");
      }
      ++in_use_;
    }
    while (std::unique_ptr<Connection> idle = TakeIdle()) {
      if (idle->IsIdle()) return idle;  // else the server closed it meanwhile, or restarted
    }
    absl::StatusOr<std::unique_ptr<Connection>> opened = Connection::Open(
        endpoint_, options_.connection, std::min(deadline, DeadlineIn(options_.connect_timeout)));
    if (!opened.ok()) GiveBack(nullptr);
    return opened;
  }

  std::unique_ptr<Connection> TakeIdle() {
    absl::MutexLock lock(&mu_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Connection> connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  void GiveBack(std::unique_ptr<Connection> connection) {
    absl::MutexLock lock(&mu_);
    --in_use_;
    if (connection != nullptr) idle_.push_back(std::move(connection));
  }

  void LogChange(bool ok, const absl::StatusOr<std::vector<Reply>>& replies) const {
    if (ok) {
      Log(LogLevel::kInfo, "the shared tier answers again", {{"server", endpoint_.ToString()}});
      return;
    }
    Log(LogLevel::kWarning, "the shared tier fails and is left alone for a while",
        {{"server", endpoint_.ToString()},
         {"why", replies.ok() ? replies->back().text.substr(0, 200)
                              : std::string(replies.status().message())}});
  }

  const Endpoint endpoint_;
  const NodeOptions options_;
  Breaker breaker_;
  absl::Mutex mu_;
  int in_use_ ABSL_GUARDED_BY(mu_) = 0;
  // The last used is taken first, so that what is not needed stays idle until the server closes it.
  std::vector<std::unique_ptr<Connection>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<Node> MakeNode(const Endpoint& endpoint, const NodeOptions& options) {
  return std::make_shared<PooledNode>(endpoint, options);
}

}  // namespace kiln::cache
