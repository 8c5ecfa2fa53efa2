// The servers of a client: calls go to one that is well, and from there to the next.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/health.h"
#include "client/patience.h"
#include "client/remote.h"
#include "client/retry.h"

namespace kiln {

// One server. A program may know of it for longer than its client lives.
struct Endpoint : std::enable_shared_from_this<Endpoint> {
  Endpoint(const std::string& server, std::shared_ptr<const Credentials> credentials,
           std::shared_ptr<Trust> trust, const CallHeaders& headers,
           std::shared_ptr<const OwnServer> own = nullptr)
      : remote(server, std::move(credentials), std::move(trust), headers, std::move(own)) {}

  Remote remote;
  std::atomic<bool> reached = false;  // it answered once
  std::atomic<bool> silent = false;   // it did not take a run's times: it is told no others
  absl::Mutex mu;
  std::string compiler_build ABSL_GUARDED_BY(mu);  // for the client's target; empty: not asked yet
};

// Thread-safe.
class Endpoints {
 public:
  // `servers`: "HOST:PORT" or several, comma-separated, as GrpcTarget takes them; empty: the user's
  // own (own_server.h). INVALID_ARGUMENT
  // for what is none, a token that would travel in the clear (Credentials), or bad headers.
  static absl::StatusOr<std::unique_ptr<Endpoints>> Create(
      const std::string& servers, const std::shared_ptr<const Credentials>& credentials,
      const std::shared_ptr<Trust>& trust, const CallHeaders& headers);

  // Calls `attempt` for one server after the other (Health::Order) until one answers:
  // - a server that is away or silent is left out for a while, and the next is tried at once;
  // - after all of them a pause (Backoff): eight rounds in all where any was ever reached, for it
  //   may be restarting, else two; and as the retry budget allows;
  // - RESOURCE_EXHAUSTED with a hint waits as long as the server asks;
  // - where the call before found no server, there is one round, and no attempt at all within a
  //   second or more of that: a server that is away costs a process its time once, not every graph.
  // Returns the last attempt's status, DEADLINE_EXCEEDED's or UNAVAILABLE's included. Attempts keep
  // to `deadline` and to `patience` themselves. `retries` counts attempts after the first and may
  // be null. CANCELLED ends the call and tells nothing of any server.
  using Attempt = std::function<absl::Status(Endpoint&)>;
  absl::Status Call(std::optional<uint64_t> affinity, absl::Time deadline, const Attempt& attempt,
                    int* retries, const Patience& patience = nullptr);

  size_t size() const { return endpoints_.size(); }
  Endpoint& at(size_t i) { return *endpoints_[i]; }
  // As given, without blanks.
  const std::vector<std::string>& servers() const { return servers_; }

 private:
  explicit Endpoints(std::vector<std::string> servers);
  static absl::StatusOr<std::unique_ptr<Endpoints>> CreateOwn(
      const std::shared_ptr<const Credentials>& credentials, const std::shared_ptr<Trust>& trust,
      const CallHeaders& headers);
  int Rounds() const;
  // True where the call is over, with `status` as its result.
  bool Settle(size_t server, absl::Time deadline, const absl::Status& status);

  const std::vector<std::string> servers_;
  std::vector<std::shared_ptr<Endpoint>> endpoints_;
  Health health_;
  RetryBudget budget_;
};

}  // namespace kiln
