// A few threads over a bounded queue: work that may touch a disk, off gRPC's threads.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace kiln::server {

// Thread-safe. The destructor runs what is queued and joins the threads.
class Executor {
 public:
  // `niceness`, 0 to 19: how far the threads stand back where processors are short.
  Executor(int threads, size_t max_queued, int niceness = 0);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // RESOURCE_EXHAUSTED with a hint where `max_queued` are waiting already; `work` is then not run.
  absl::Status Run(std::function<void()> work);

 private:
  void RunThread(int niceness);
  bool Ready() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }

  const size_t max_queued_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kiln::server
