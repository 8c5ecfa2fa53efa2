// Bounds the requests that have begun to come and are not whole yet, whoever sends them. gRPC keeps
// what has come of a message until it is whole, and compares its size with a limit only then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace kiln::server {

struct RequestLimits {
  int64_t bytes = int64_t{512} << 20;             // of all connections
  int64_t connection_bytes = int64_t{128} << 20;  // of one
  absl::Duration time = absl::Minutes(1);         // from a request's begin to its last byte
  absl::Duration pause = absl::Minutes(15);  // the same from one message of a stream to the next
  // What came from `peer` since it connected; nothing where it has gone. Without this function only
  // time counts.
  std::function<std::optional<int64_t>(absl::string_view peer)> received_bytes;
};

struct RequestCounts {
  int64_t incomplete = 0;        // requests
  int64_t incomplete_bytes = 0;  // of those that take longer than a moment
  int64_t refused_bytes = 0;     // requests, for the bytes of their connection or of all
  int64_t refused_time = 0;      // requests that took too long
};

// Whoever waits for a message.
class RequestReader {
 public:
  virtual ~RequestReader() = default;
  // Called under a lock: stay until Refuse has returned.
  virtual void AwaitRefusal() = 0;
  // The message is no longer wanted; called once, on another thread.
  virtual void Refuse(absl::string_view why) = 0;
};

// Thread-safe. Looks every 20 ms at connections whose requests take longer than that, and asks the
// kernel what came from them: requests that come at once cost one lock at their begin and one at
// their end. What is over a limit is refused: the requests under way of the connection that has
// most, of the address that has most. Gives memory back to the system after large requests.
class RequestWatch {
 public:
  struct Connection;
  // One message; must stay between Begin and End.
  struct Read {
    RequestReader* reader = nullptr;
    Connection* connection = nullptr;
    absl::Time since;
    absl::Duration limit;
    bool refused = false;
  };

  explicit RequestWatch(RequestLimits limits);
  ~RequestWatch();

  // `another`: the call has brought a message before, and may take its time with the next.
  void Begin(Read& read, RequestReader* reader, absl::string_view peer, bool another = false);
  // `bytes`: of the whole message; negative where none came. False where it was refused before.
  bool End(Read& read, int64_t bytes);
  RequestCounts Counts();

 private:
  using Refusals = std::vector<std::pair<RequestReader*, std::string>>;

  void Run();
  void Look(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void LookAt(absl::string_view peer, Connection& connection, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unfinished(Connection& connection, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseSlow(Connection& connection, absl::Time now, Refusals& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefuseAll(Connection& connection, absl::Time now, Refusals& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until no more is held than may be; returns what is.
  int64_t RefuseMost(int64_t held_bytes, absl::Time now, Refusals& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(Read& read, std::string why, Refusals& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackMemory(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  void LogRefusals(absl::Time now, const RequestCounts& counts);

  const RequestLimits limits_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
  RequestCounts counts_ ABSL_GUARDED_BY(mu_);
  absl::Time trim_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Of the thread.
  absl::Time trimmed_ = absl::InfinitePast();
  absl::Time logged_ = absl::InfinitePast();
  int64_t logged_refusals_ = 0;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace kiln::server
