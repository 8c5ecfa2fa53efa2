// One job for each artifact key, however many calls wait for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/store.h"
#include "server/caller.h"
#include "server/compile_job.h"
#include "server/refusals.h"

namespace kiln::server {

struct BrokerOptions {
  int job_threads = 4;  // jobs that run at once
  int max_queued_jobs = 256;
  absl::Duration refusal_period = absl::Seconds(60);
};

struct CompileAnswer {
  cache::EntryPtr artifact;
  absl::string_view source;  // "compiled", "coalesced", or the tier that had it after all
};

struct CompileCallbacks {
  ProgressSink progress;  // any number of times, on any thread; must not block
  std::function<void(const absl::StatusOr<CompileAnswer>&)> done;  // at most once; must not block
};

struct BrokerCounts {
  int queued = 0;
  int running = 0;
  int waiters = 0;
};

// Thread-safe; its calls take no time to speak of.
class Broker {
 public:
  struct Ticket {
    Digest key;
    int64_t job = 0;
    int64_t waiter = 0;
  };

  // `known` is asked once more before a job runs: a job of the same key may have ended between a
  // call's own lookup and its joining.
  Broker(BrokerOptions options, CompileJobContext context, cache::Store* known);
  // Stops every job; their waiters get CANCELLED.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Joins the key's job or queues a new one. RESOURCE_EXHAUSTED with a retry hint where the queue
  // is full, UNAVAILABLE while draining, FAILED_PRECONDITION where the graph killed workers.
  absl::StatusOr<Ticket> Join(const Digest& key, std::shared_ptr<const v1::CompileRequest> request,
                              const Caller& caller, CompileCallbacks callbacks);
  // The waiter leaves; its callbacks may still be running. The last one's leaving stops the job.
  void Leave(const Ticket& ticket);

  // From now on only jobs that exist are worked on.
  void StartDrain();
  // True once there is no job; false after `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);
  BrokerCounts Counts();

 private:
  struct Job;

  void RunThread();
  void RunJob(const std::shared_ptr<Job>& job);
  absl::StatusOr<CompileAnswer> FindOrCompile(const std::shared_ptr<Job>& job, absl::Time start);
  void Report(const std::shared_ptr<Job>& job, const v1::Progress& progress);
  absl::Status QueueFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CanRun() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return queue_.empty() && running_ == 0; }

  const BrokerOptions options_;
  const CompileJobContext context_;
  cache::Store& known_;
  Refusals refusals_;

  absl::Mutex mu_;
  // A job leaves the map when it ends or its last waiter leaves; a stopped one may still run.
  absl::flat_hash_map<Digest, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Job>> queue_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Job>> active_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  absl::Duration typical_duration_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kiln::server
