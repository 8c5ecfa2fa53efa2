#include "server/calls/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/scheduling.h"
#include "server/jobs/busy.h"

namespace kiln::server {
namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(250);

}  // namespace

Executor::Executor(int threads, size_t max_queued, int niceness) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, niceness] { RunThread(niceness); });
  }
}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Executor::Run(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (queue_.size() >= max_queued_) {
    return BusyError(absl::StrCat("the server is busy: ", max_queued_, " requests wait"),
                     kRetryAfter);
  }
  queue_.push_back(std::move(work));
  return absl::OkStatus();
}

void Executor::RunThread(int niceness) {
  if (niceness > 0) StandBackBy(niceness);
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Executor::Ready));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kiln::server
