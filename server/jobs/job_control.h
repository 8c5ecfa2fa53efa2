// How a job's thread waits for its workers, and how others stop it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace kiln::server {

// Thread-safe.
class JobControl {
 public:
  // The job's result is wanted no more: waits end, workers are called off.
  void Stop() {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  bool stopped() const {
    absl::MutexLock lock(&mu_);
    return stopped_;
  }

  void Expect(int answers) {
    absl::MutexLock lock(&mu_);
    outstanding_ += answers;
  }
  void Answered() {
    absl::MutexLock lock(&mu_);
    --outstanding_;
  }
  // Waits for every expected answer; CANCELLED at once when stopped, answers may then still come.
  absl::Status Wait() {
    absl::MutexLock lock(&mu_);
    mu_.Await(
        absl::Condition(+[](JobControl* c) { return c->stopped_ || c->outstanding_ == 0; }, this));
    return stopped_ ? absl::CancelledError("nobody waits for this compile any more")
                    : absl::OkStatus();
  }

 private:
  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  int outstanding_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kiln::server
