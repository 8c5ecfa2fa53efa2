// One job for each artifact key, however many calls wait for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/lease.h"
#include "cache/store.h"
#include "server/jobs/compile_job.h"
#include "server/jobs/fair_queue.h"
#include "server/jobs/lease_watch.h"
#include "server/jobs/refusals.h"
#include "server/security/caller.h"

namespace kiln::server {

struct BrokerOptions {
  int job_threads = 4;  // jobs that run at once
  int max_queued_jobs = 256;
  absl::Duration refusal_period = absl::Seconds(60);
  int tenant_max_queued = 0;   // 0: no limit of its own
  int tenant_max_running = 0;  // 0: all but one of job_threads, so that one is left for the others
  std::map<std::string, int> tenant_weights;  // 1 for the others
  // How long a job goes on after its last waiter has gone, who may come back.
  absl::Duration reattach_grace = absl::Seconds(2);
  LeaseWatchOptions lease;
};

struct CompileAnswer {
  cache::EntryPtr artifact;
  absl::string_view source;  // "compiled", "coalesced", or the tier that had it after all
  TraceContext trace;        // the job's span
};

struct CompileCallbacks {
  ProgressSink progress;  // any number of times, on any thread; must not block
  std::function<void(const absl::StatusOr<CompileAnswer>&)> done;  // at most once; must not block
};

struct BrokerCounts {
  int queued = 0;  // those that another server compiles included
  int running = 0;
  int waiters = 0;
  std::vector<TenantCounts> tenants;  // that have jobs
};

// Thread-safe; its calls take no time to speak of.
//
// A job's way: queued (fair_queue.h), then on a job thread: looked up, compiled, its waiters
// answered. Where servers share a tier, a job whose key another server compiles is parked between
// the two, without a thread, until the entry or the lease comes (lease_watch.h).
class Broker {
 public:
  struct Ticket {
    Digest key;
    int64_t job = 0;
    int64_t waiter = 0;
  };

  // `known` is asked once more before a job runs: a job of the same key may have ended between a
  // call's own lookup and its joining, here or on another server. `leases` may be null.
  Broker(BrokerOptions options, CompileJobContext context, cache::Store* known,
         cache::Leases* leases = nullptr);
  // Stops every job; their waiters get CANCELLED.
  ~Broker();
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // Joins the key's job or queues a new one, which keeps `room` until it is over.
  // RESOURCE_EXHAUSTED with a retry hint where there is no room, UNAVAILABLE while draining,
  // FAILED_PRECONDITION where the graph killed workers. A job that waits may still be turned away
  // for another tenant's: its waiters get RESOURCE_EXHAUSTED.
  absl::StatusOr<Ticket> Join(const Digest& key, std::shared_ptr<const v1::CompileRequest> request,
                              const Caller& caller, CompileCallbacks callbacks,
                              std::shared_ptr<void> room = nullptr);
  // The waiter leaves; its callbacks may still be running. The last one's leaving stops the job, at
  // once or after the grace period.
  enum class Departure { kFinal, kMayReturn };
  void Leave(const Ticket& ticket, Departure departure = Departure::kFinal);

  // From now on only jobs that exist are worked on.
  void StartDrain();
  // True once there is no job; false after `timeout`.
  bool WaitUntilIdle(absl::Duration timeout);
  BrokerCounts Counts();
  // Lets graphs that killed workers try again at once; returns how many there were.
  int64_t ClearRefusals() { return refusals_.Clear(); }

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  // A job without waiters, by the time when it is stopped. `departure` is the one that left
  // it alone: void once somebody joined.
  struct Lingering {
    std::weak_ptr<Job> job;
    int64_t departure = 0;
  };

  void RunThread();
  void RunJob(const JobPtr& job);
  absl::StatusOr<CompileAnswer> Compile(const JobPtr& job);
  // True where the job has to wait for another server's: it is then parked.
  bool ParkedForAnother(const JobPtr& job);
  void Resume(const JobPtr& job, const LeaseWatch::Answer& answer);
  void Finish(const JobPtr& job, const absl::StatusOr<CompileAnswer>& answer);
  void Report(const JobPtr& job, const v1::Progress& progress);
  static void EndSpan(Job& job, const absl::StatusOr<CompileAnswer>& answer);

  // Queues a new job; `evicted` gets those that lose their place to it.
  absl::StatusOr<JobPtr> NewJob(CompileJobInput input, const Caller& caller,
                                std::vector<CompileCallbacks>& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  JobPtr NextJob() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stops the job and takes it off every list.
  void Drop(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status NoRoom(const absl::Status& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void RunLingerThread();
  void StopAlone(const Lingering& lingering) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsAlone(const JobPtr& job, int64_t departure) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  int Waiting() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return queue_.size() + static_cast<int>(parked_.size() + ready_.size());
  }
  bool CanRun() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !ready_.empty() || queue_.CanPop();
  }
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return Waiting() == 0 && running_ == 0; }

  const BrokerOptions options_;
  const CompileJobContext context_;
  cache::Store& known_;
  Refusals refusals_;

  absl::Mutex mu_;
  // A job leaves the map when it ends or nobody waits for it any more; a stopped one may still run.
  absl::flat_hash_map<Digest, JobPtr> jobs_ ABSL_GUARDED_BY(mu_);
  FairQueue queue_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int64_t, JobPtr> queued_ ABSL_GUARDED_BY(mu_);  // those in queue_
  absl::flat_hash_set<JobPtr> parked_ ABSL_GUARDED_BY(mu_);
  std::deque<JobPtr> ready_ ABSL_GUARDED_BY(mu_);  // were parked, and are to run
  std::vector<JobPtr> active_ ABSL_GUARDED_BY(mu_);
  std::multimap<absl::Time, Lingering> lingering_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t started_ ABSL_GUARDED_BY(mu_) = 0;  // jobs, so far
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<LeaseWatch> lease_watch_;  // null where there are no leases
  std::vector<std::thread> threads_;
};

}  // namespace kiln::server
