// A circuit breaker: after failures in a row a server is left alone for a while.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/remote/deadline.h"

namespace kiln::cache {

struct BreakerOptions {
  int failures_to_open = 5;  // in a row
  // How long it stays open at first; twice as long each time that a probe fails, up to the most.
  // A fifth is random, so that many clients do not probe at one moment.
  absl::Duration min_open = absl::Seconds(1);
  absl::Duration max_open = absl::Seconds(30);
};

enum class BreakerState { kClosed, kHalfOpen, kOpen };

// Thread-safe. Closed lets everything through; open nothing; once its time has passed, one request
// goes as a probe (half-open) and decides.
class Breaker {
 public:
  explicit Breaker(const BreakerOptions& options) : options_(options) {}

  // Where true, one call of Done must follow.
  bool Admit(SteadyTime now);
  // True where this changed the state to open, or from half-open to closed: worth a log line.
  bool Done(bool ok, SteadyTime now);
  BreakerState state() const;

 private:
  void Open(SteadyTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const BreakerOptions options_;
  mutable absl::Mutex mu_;
  absl::BitGen random_ ABSL_GUARDED_BY(mu_);
  BreakerState state_ ABSL_GUARDED_BY(mu_) = BreakerState::kClosed;
  int failures_ ABSL_GUARDED_BY(mu_) = 0;  // in a row, while closed
  absl::Duration open_for_ ABSL_GUARDED_BY(mu_);
  SteadyTime probe_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::cache
