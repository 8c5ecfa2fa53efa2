// When a failed call is worth another one, how long to wait before it, and how many there may be.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln {

// What the end of a call says about the server, and about trying again. Every call that goes
// through here may be repeated: the server compiles a key once, however often it is asked.
enum class Verdict {
  kAnswer,     // success, or an error that would come again
  kElsewhere,  // the server is away, leaves, or does not answer in time
  kLater,      // the server is well, and says when to ask again
};
Verdict Judge(const absl::Status& status);

// When the server wants to be asked again; zero where it does not say.
absl::Duration RetryAfter(const absl::Status& status);

// Exponential, with full jitter: between zero and 100 ms, 200 ms, 400 ms, ... up to 2 s, so that
// clients that failed together do not come back together. `round` counts from 0.
absl::Duration Backoff(int round);

// A server's hint, up to half as long again.
absl::Duration Jittered(absl::Duration hint);

// Retries may be a tenth of the calls, and ten in a row: clients of a server in trouble must not
// multiply its load. Waits that a server asked for are not counted. Thread-safe.
class RetryBudget {
 public:
  void CountCall();
  // False where there is nothing left.
  bool TakeRetry();

 private:
  absl::Mutex mu_;
  double tokens_ ABSL_GUARDED_BY(mu_) = 10;
};

}  // namespace kiln
