// Which of several servers to ask, and when to ask none for a while. Knows no network: the caller
// tells what happened, and when.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln {

// Thread-safe.
class Health {
 public:
  explicit Health(const std::vector<std::string>& servers);

  // How a call may go about.
  enum class Admission {
    kUsual,
    kProbe,    // the last call found no server: one pass over them, for everybody
    kRefused,  // that was just now, or somebody probes: last_error() is the answer
  };
  Admission Begin(absl::Time now);
  // Ends a call that found no server: none is asked for 1 s, then 2 s, 4 s, up to 30 s.
  void GaveUp(absl::Time now, const absl::Status& error);
  // Ends a call that its caller did not wait for.
  void Withdrew();
  absl::Status last_error() const;

  // Every server once, in the order to ask them. Servers that failed come last for a while, and
  // until they are `connected` again. Among the rest, each `affinity` has an order of its own, the
  // same in every process, so that what belongs together is asked of one server; none: as listed.
  std::vector<size_t> Order(std::optional<uint64_t> affinity, absl::Time now,
                            const std::function<bool(size_t)>& connected);
  // Left out for 1 s, doubling to 30 s with each failure in a row.
  void Failed(size_t server, absl::Time now);
  void Answered(size_t server);

 private:
  struct Server {
    uint64_t hash = 0;
    int failures = 0;  // in a row
    absl::Time left_out_until = absl::InfinitePast();
  };

  mutable absl::Mutex mu_;
  std::vector<Server> servers_ ABSL_GUARDED_BY(mu_);
  int gave_up_ ABSL_GUARDED_BY(mu_) = 0;  // in a row
  absl::Time closed_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool probing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln
