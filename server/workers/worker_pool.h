// Worker processes and the queue before them. One thread a worker starts it, has it make a process
// for each task, feeds and watches that, and replaces the worker when it dies.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/v1/worker.pb.h"
#include "server/workers/standby.h"
#include "server/workers/worker_backend.h"
#include "server/workers/worker_process.h"

namespace kiln::server {

struct WorkerPoolOptions {
  int workers = 2;
  WorkerLimits limits;
  // Processes that wait for kernels, of all workers together; where not 0, each worker has one at
  // least.
  int standby = 0;
  // What kernels those wait for until one has come; device and options alone count.
  v1::CompileKernelRequest first_kind;
  // Workers that the system cannot confine wholly are not used.
  bool require_isolation = false;
  std::vector<std::string> command = {"/proc/self/exe", "worker"};
  // Called on a pool's thread for every process that ends otherwise than a task does with its
  // answer.
  std::function<void(ExitReason)> on_exit;
};

struct WorkerCounts {
  int starting = 0;
  int idle = 0;
  int busy = 0;
  int isolation_gaps = 0;  // what the system did not allow of server/workers/sandbox.h
};

// Thread-safe. Every task has a process of its own, which is killed at the task's end, whichever
// way it comes; the worker that it was forked from serves the next one.
class WorkerPool final : public WorkerBackend {
 public:
  explicit WorkerPool(WorkerPoolOptions options);
  // Ends running tasks and drops queued ones, each with CANCELLED.
  ~WorkerPool() override;

  void Submit(WorkerTask task) override;
  WorkerCounts Counts();
  // True as soon as one worker has started and warmed up; false after `timeout`, or when workers
  // are refused for want of isolation.
  bool WaitUntilReady(absl::Duration timeout);

 private:
  enum class State { kStarting, kIdle, kBusy };
  struct Slot {
    explicit Slot(int most_standby) : standby(most_standby) {}
    State state = State::kStarting;
    // Of the slot's thread alone, in this order: those that wait end before their worker.
    std::unique_ptr<WorkerProcess> process;
    StandbyTasks standby;
    absl::Time next_standby = absl::InfinitePast();
    std::thread thread;
  };
  // Class, job, negative weight, arrival: the smallest goes first.
  using Order = std::tuple<int, int64_t, int64_t, int64_t>;

  void RunSlot(Slot& slot);
  absl::Status StartWorker(Slot& slot);
  // While no task waits, one process for one that will.
  void AddStandby(Slot& slot);
  // One log line a pool: all workers run on the same system.
  void ReportIsolation(const std::vector<std::string>& missing);
  void Requeue(WorkerTask task);
  std::optional<WorkerTask> NextTask(Slot& slot);
  std::optional<WorkerTask> PopTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CanPop() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::WorkerResponse> RunTask(Slot& slot, const WorkerTask& task);
  // Reaps the process, reports why it ended, and says so as an error for its task.
  absl::Status Bury(std::unique_ptr<WorkerProcess>& process, const absl::Status& why);
  // The same for the slot's worker, and for what it made ahead.
  absl::Status BuryWorker(Slot& slot, const absl::Status& why);
  // Ends a wait after `limit`, or when the pool ends. `too_late` lives as long as the program.
  KeepWaiting WaitFor(absl::Duration limit, absl::string_view too_late);
  void SetState(Slot& slot, State state);
  bool AnyReady() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool IsDecided() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return refused_ || AnyReady(); }

  const WorkerPoolOptions options_;
  std::atomic<bool> isolation_reported_ = false;
  absl::Mutex mu_;
  std::map<Order, WorkerTask> queue_ ABSL_GUARDED_BY(mu_);
  int64_t arrivals_ ABSL_GUARDED_BY(mu_) = 0;
  v1::StartTask last_kind_ ABSL_GUARDED_BY(mu_);  // of the last kernel that was compiled
  int queued_long_ ABSL_GUARDED_BY(mu_) = 0;
  int running_long_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool refused_ ABSL_GUARDED_BY(mu_) = false;  // a worker, for want of isolation
  int isolation_gaps_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Slot>> slots_;  // fixed after construction; states under mu_
};

}  // namespace kiln::server
