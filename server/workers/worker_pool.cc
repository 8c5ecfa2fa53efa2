#include "server/workers/worker_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kiln/v1/error.pb.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "server/workers/frame.h"
#include "server/workers/task_process.h"

namespace kiln::server {
namespace {

constexpr int kLongClass = 2;  // interpreting: last, and never on every worker
constexpr int kMaxQueuedLong = 32;
constexpr absl::Duration kStartLimit = absl::Seconds(30);
constexpr absl::Duration kStopGrace = absl::Milliseconds(250);
constexpr absl::Duration kIdleCheck = absl::Milliseconds(100);
constexpr absl::Duration kStandbyPace = absl::Milliseconds(20);
constexpr absl::Duration kStandbyLimit = absl::Seconds(5);
constexpr absl::Duration kStandbyBackoff = absl::Seconds(10);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLastBackoff = absl::Seconds(1);

int ClassOf(const v1::WorkerRequest& request) {
  switch (request.kind_case()) {
    case v1::WorkerRequest::kLink:
      return 0;  // ends a job
    case v1::WorkerRequest::kInterpret:
      return kLongClass;
    default:
      return 1;
  }
}

absl::Status DeathError(v1::ErrorDetail::Reason reason, absl::Status status) {
  v1::ErrorDetail detail;
  detail.set_reason(reason);
  return WithDetail(std::move(status), detail);
}

absl::Status FromWorkerError(const v1::WorkerError& error) {
  auto code = static_cast<absl::StatusCode>(error.code());
  if (code == absl::StatusCode::kOk) code = absl::StatusCode::kInternal;
  absl::Status status(code, error.message());
  return error.has_detail() ? WithDetail(std::move(status), error.detail()) : status;
}

bool HasReason(const absl::Status& status, v1::ErrorDetail::Reason reason) {
  auto detail = GetDetail(status);
  return detail && detail->reason() == reason;
}

// Decides, about every 20 ms, whether a task may go on.
class Watch {
 public:
  Watch(const WorkerTask& task, const WorkerProcess* process, const WorkerLimits& limits,
        std::function<bool()> pool_stopping)
      : task_(task),
        process_(process),
        limits_(limits),
        pool_stopping_(std::move(pool_stopping)),
        deadline_(absl::Now() + limits.task_timeout) {}

  // The process that works on the task now.
  void Follow(const WorkerProcess* process) { process_ = process; }

  // A worker that sends something is alive: its wall time starts anew.
  void NoteProgress() { deadline_ = absl::Now() + limits_.task_timeout; }

  absl::Status operator()() {
    absl::Time now = absl::Now();
    if (process_->ResidentBytes() > limits_.memory_bytes) {
      return DeathError(v1::ErrorDetail::REASON_WORKER_MEMORY,
                        absl::ResourceExhaustedError(absl::StrCat(
                            "the compile was stopped: it used more than ", limits_.memory_bytes,
                            " bytes of memory (--worker-memory)")));
    }
    if (now > deadline_) {
      return DeathError(v1::ErrorDetail::REASON_WORKER_TIMEOUT,
                        absl::ResourceExhaustedError(absl::StrCat(
                            "the compile was stopped: it took longer than ",
                            absl::FormatDuration(limits_.task_timeout), " (--worker-timeout)")));
    }
    if (!task_.stopped() && !pool_stopping_()) return absl::OkStatus();
    if (stop_by_ == absl::InfiniteFuture()) stop_by_ = now + kStopGrace;
    if (now > stop_by_) return absl::CancelledError("nobody waits for this any more");
    return absl::OkStatus();
  }

 private:
  const WorkerTask& task_;
  const WorkerProcess* process_;
  const WorkerLimits& limits_;
  const std::function<bool()> pool_stopping_;
  absl::Time deadline_;
  absl::Time stop_by_ = absl::InfiniteFuture();
};

// What a worker may get ready before it makes the process for `kernel`: it never sees the rest.
v1::StartTask Announce(const v1::CompileKernelRequest& kernel) {
  v1::StartTask start;
  v1::CompileKernelRequest& like = *start.mutable_prepare();
  like.mutable_device()->set_target(kernel.device().target());
  like.mutable_device()->set_arch(kernel.device().arch());
  *like.mutable_device()->mutable_features() = kernel.device().features();
  like.mutable_options()->set_optimization_level(kernel.options().optimization_level());
  like.mutable_options()->set_fast_math(kernel.options().fast_math());
  return start;
}

absl::StatusOr<v1::WorkerResponse> ReadResponse(const WorkerProcess& process,
                                                const KeepWaiting& keep_waiting) {
  KILN_ASSIGN_OR_RETURN(std::string frame, ReadFrame(process.socket_fd(), keep_waiting));
  v1::WorkerResponse response;
  if (!response.ParseFromString(frame)) {
    return absl::InternalError("a worker sent a malformed response");
  }
  return response;
}

absl::StatusOr<v1::WorkerReady> ReadReady(const WorkerProcess& process,
                                          const KeepWaiting& keep_waiting) {
  KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, ReadResponse(process, keep_waiting));
  if (!response.has_ready()) return absl::InternalError("a worker did not say that it is ready");
  return std::move(*response.mutable_ready());
}

bool IsAnswerTo(const v1::WorkerRequest& request, const v1::WorkerResponse& response) {
  switch (response.kind_case()) {
    case v1::WorkerResponse::kPlan:
      return request.has_plan();
    case v1::WorkerResponse::kCompileKernel:
      return request.has_compile_kernel();
    case v1::WorkerResponse::kLink:
      return request.has_link();
    case v1::WorkerResponse::kAssemble:
      return request.has_assemble();
    case v1::WorkerResponse::kDisassemble:
      return request.has_disassemble();
    case v1::WorkerResponse::kInterpret:
    case v1::WorkerResponse::kDone:
      return request.has_interpret();
    case v1::WorkerResponse::kError:
      return true;
    case v1::WorkerResponse::kReady:
    case v1::WorkerResponse::KIND_NOT_SET:
      return false;
  }
  return false;
}

// Everything that goes between the server and a task's process, but for its events the last
// response.
absl::StatusOr<v1::WorkerResponse> Converse(const WorkerProcess& process, const WorkerTask& task,
                                            absl::string_view request, Watch& watch) {
  const KeepWaiting keep_waiting = [&watch] { return watch(); };
  KILN_RETURN_IF_ERROR(WriteFrame(process.socket_fd(), request, keep_waiting));
  KILN_RETURN_IF_ERROR(ReadReady(process, keep_waiting).status());
  while (true) {
    KILN_ASSIGN_OR_RETURN(v1::WorkerResponse response, ReadResponse(process, keep_waiting));
    if (!IsAnswerTo(*task.request, response)) {
      return absl::InternalError("a worker's response is none to its request");
    }
    if (!response.has_interpret()) return response;
    watch.NoteProgress();
    if (task.on_event) KILN_RETURN_IF_ERROR(task.on_event(response));
  }
}

}  // namespace

WorkerPool::WorkerPool(WorkerPoolOptions options) : options_(std::move(options)) {
  const int standby = (options_.standby + options_.workers - 1) / options_.workers;
  if (options_.first_kind.has_device()) last_kind_ = Announce(options_.first_kind);
  for (int i = 0; i < options_.workers; ++i) slots_.push_back(std::make_unique<Slot>(standby));
  for (auto& slot : slots_) slot->thread = std::thread([this, s = slot.get()] { RunSlot(*s); });
}

WorkerPool::~WorkerPool() {
  std::map<Order, WorkerTask> dropped;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  for (auto& [order, task] : dropped) task.done(absl::CancelledError("the server stops"));
  for (auto& slot : slots_) slot->thread.join();
}

void WorkerPool::Requeue(WorkerTask task) {
  if (ClassOf(*task.request) == kLongClass) {
    absl::MutexLock lock(&mu_);
    --running_long_;
  }
  Submit(std::move(task));
}

void WorkerPool::Submit(WorkerTask task) {
  int task_class = ClassOf(*task.request);
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) {
      refused = absl::CancelledError("the server stops");
    } else if (task_class == kLongClass && queued_long_ >= kMaxQueuedLong) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("the server is busy: ", queued_long_, " graphs wait to be interpreted"));
    } else {
      if (task_class == kLongClass) ++queued_long_;
      Order order{task_class, task.job, -task.weight, arrivals_++};
      queue_.emplace(order, std::move(task));
      return;
    }
  }
  task.done(refused);
}

WorkerCounts WorkerPool::Counts() {
  absl::MutexLock lock(&mu_);
  WorkerCounts counts;
  for (const auto& slot : slots_) {
    if (slot->state == State::kStarting) ++counts.starting;
    if (slot->state == State::kIdle) ++counts.idle;
    if (slot->state == State::kBusy) ++counts.busy;
  }
  counts.isolation_gaps = isolation_gaps_;
  return counts;
}

bool WorkerPool::AnyReady() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot->state != State::kStarting; });
}

bool WorkerPool::WaitUntilReady(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &WorkerPool::IsDecided), timeout);
  return AnyReady();
}

void WorkerPool::SetState(Slot& slot, State state) {
  absl::MutexLock lock(&mu_);
  slot.state = state;
}

bool WorkerPool::CanPop() const {
  if (stopping_) return true;
  if (queue_.empty()) return false;
  int most_long = std::max(1, options_.workers - 1);
  return std::get<0>(queue_.begin()->first) != kLongClass || running_long_ < most_long;
}

std::optional<WorkerTask> WorkerPool::PopTask() {
  if (stopping_ || queue_.empty() || !CanPop()) return std::nullopt;
  auto first = queue_.begin();
  if (std::get<0>(first->first) == kLongClass) {
    --queued_long_;
    ++running_long_;
  }
  WorkerTask task = std::move(first->second);
  queue_.erase(first);
  return task;
}

std::optional<WorkerTask> WorkerPool::NextTask(Slot& slot) {
  absl::MutexLock lock(&mu_);
  slot.state = State::kIdle;
  const bool wants_standby = slot.standby.Wants(last_kind_) && absl::Now() >= slot.next_standby;
  mu_.AwaitWithTimeout(absl::Condition(this, &WorkerPool::CanPop),
                       wants_standby ? kStandbyPace : kIdleCheck);
  std::optional<WorkerTask> task = PopTask();
  if (task) slot.state = State::kBusy;
  return task;
}

void WorkerPool::RunSlot(Slot& slot) {
  absl::Duration backoff = kFirstBackoff;
  auto stopping = [this] {
    absl::MutexLock lock(&mu_);
    return stopping_;
  };
  while (!stopping()) {
    if (slot.process == nullptr) {
      SetState(slot, State::kStarting);
      if (absl::Status status = StartWorker(slot); !status.ok()) {
        Log(LogLevel::kError, "a worker does not start", {{"why", std::string(status.message())}});
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(&stopping_), backoff);
        backoff = std::min(2 * backoff, kLastBackoff);
        continue;
      }
      backoff = kFirstBackoff;
    }
    std::optional<WorkerTask> task = NextTask(slot);
    if (slot.process->HasEnded()) {
      // Killed while idle: not this task's doing, where there is one.
      BuryWorker(slot, absl::UnavailableError("ended while idle")).IgnoreError();  // no task's
      if (task) Requeue(*std::move(task));
      continue;
    }
    if (!task) {
      AddStandby(slot);
      continue;
    }
    absl::StatusOr<v1::WorkerResponse> response =
        task->stopped() ? absl::CancelledError("nobody waits for this any more")
                        : RunTask(slot, *task);
    if (ClassOf(*task->request) == kLongClass) {
      absl::MutexLock lock(&mu_);
      --running_long_;
    }
    task->done(std::move(response));
  }
  slot.standby.Clear();
  if (slot.process != nullptr) {
    slot.process->Reap(/*kill=*/true);
    slot.process = nullptr;
    if (options_.on_exit) options_.on_exit(ExitReason::kNormal);
  }
}

absl::Status WorkerPool::StartWorker(Slot& slot) {
  KILN_ASSIGN_OR_RETURN(slot.process, WorkerProcess::Start(options_.command, options_.limits));
  const KeepWaiting keep_waiting = WaitFor(kStartLimit, "it is not ready in time");
  // Says that the worker has run its compiler once.
  absl::StatusOr<v1::WorkerReady> ready = ReadReady(*slot.process, keep_waiting);
  if (!ready.ok()) return Bury(slot.process, ready.status());
  // A process without a task says whether this system allows what tasks need, and forbids the rest.
  auto trial = StartTaskProcess(*slot.process, {}, keep_waiting);
  if (!trial.ok()) return Bury(slot.process, trial.status());
  absl::StatusOr<v1::WorkerReady> sealed = ReadReady(**trial, keep_waiting);
  *trial = nullptr;
  if (!sealed.ok()) return Bury(slot.process, sealed.status());
  std::vector<std::string> missing(ready->not_isolated().begin(), ready->not_isolated().end());
  missing.insert(missing.end(), sealed->not_isolated().begin(), sealed->not_isolated().end());
  ReportIsolation(missing);
  if (!options_.require_isolation || missing.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  refused_ = true;
  return absl::FailedPreconditionError(absl::StrCat(
      "this system cannot confine it (--sandbox require): ", absl::StrJoin(missing, "; ")));
}

void WorkerPool::AddStandby(Slot& slot) {
  v1::StartTask kind;
  {
    absl::MutexLock lock(&mu_);
    kind = last_kind_;
  }
  if (!slot.standby.Wants(kind) || absl::Now() < slot.next_standby) return;
  const absl::Status added =
      slot.standby.Add(*slot.process, kind, WaitFor(kStandbyLimit, "it is not made in time"));
  if (added.ok()) return;
  slot.next_standby = absl::Now() + kStandbyBackoff;
  if (absl::IsResourceExhausted(added)) return;
  // Else what it may still say would be taken for its next answer.
  BuryWorker(slot, added).IgnoreError();  // no task's
}

void WorkerPool::ReportIsolation(const std::vector<std::string>& missing) {
  if (isolation_reported_.exchange(true)) return;
  {
    absl::MutexLock lock(&mu_);
    isolation_gaps_ = static_cast<int>(missing.size());
  }
  if (missing.empty()) {
    Log(LogLevel::kInfo, "compile workers are isolated");
  } else {
    Log(LogLevel::kWarning, "compile workers are isolated in part: this system does not allow all",
        {{"missing", absl::StrJoin(missing, "; ")}});
  }
}

KeepWaiting WorkerPool::WaitFor(absl::Duration limit, absl::string_view too_late) {
  return [this, deadline = absl::Now() + limit, too_late]() -> absl::Status {
    absl::MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("the server stops");
    if (absl::Now() > deadline) return absl::DeadlineExceededError(too_late);
    return absl::OkStatus();
  };
}

absl::Status WorkerPool::BuryWorker(Slot& slot, const absl::Status& why) {
  slot.standby.Clear();
  return Bury(slot.process, why);
}

absl::Status WorkerPool::Bury(std::unique_ptr<WorkerProcess>& process, const absl::Status& why) {
  bool ended_itself = absl::IsUnavailable(why);
  WorkerExit exit = process->Reap(/*kill=*/!ended_itself);
  process = nullptr;
  absl::Status status = why;
  if (HasReason(why, v1::ErrorDetail::REASON_WORKER_TIMEOUT)) {
    exit.reason = ExitReason::kTimeout;
  } else if (HasReason(why, v1::ErrorDetail::REASON_WORKER_MEMORY)) {
    exit.reason = ExitReason::kMemory;
  } else if (!ended_itself) {
    exit.reason = ExitReason::kNormal;
  } else if (exit.reason == ExitReason::kTimeout) {
    status = DeathError(v1::ErrorDetail::REASON_WORKER_TIMEOUT,
                        absl::ResourceExhaustedError(
                            absl::StrCat("the compile was stopped: it used more than ",
                                         absl::FormatDuration(options_.limits.task_timeout),
                                         " of processor time (--worker-timeout)")));
  } else if (exit.reason == ExitReason::kMemory) {
    status = DeathError(v1::ErrorDetail::REASON_WORKER_MEMORY,
                        absl::ResourceExhaustedError(absl::StrCat(
                            "the compile ran out of its ", options_.limits.memory_bytes,
                            " bytes of memory (--worker-memory)")));
  } else {
    exit.reason = ExitReason::kCrash;  // nobody asked it to end
    status =
        DeathError(v1::ErrorDetail::REASON_WORKER_CRASHED,
                   absl::InternalError(absl::StrCat("the compile's worker crashed: ", exit.text)));
  }
  Log(LogLevel::kWarning, "a worker ended",
      {{"reason", std::string(ExitReasonName(exit.reason))}, {"exit", exit.text}});
  if (options_.on_exit) options_.on_exit(exit.reason);
  return status;
}

absl::StatusOr<v1::WorkerResponse> WorkerPool::RunTask(Slot& slot, const WorkerTask& task) {
  std::string request = task.request->SerializeAsString();
  if (static_cast<int64_t>(request.size()) > kMaxFrameBytes) {
    return absl::ResourceExhaustedError("the request is too large for a worker");
  }
  Watch watch(task, slot.process.get(), options_.limits, [this] {
    absl::MutexLock lock(&mu_);
    return stopping_;
  });
  v1::StartTask start;
  if (task.request->has_compile_kernel()) start = Announce(task.request->compile_kernel());
  if (task.request->has_assemble()) {
    start.mutable_prepare()->mutable_device()->set_arch(task.request->assemble().arch());
  }
  std::unique_ptr<WorkerProcess> process = slot.standby.Take(start);
  if (process == nullptr) {
    auto started = StartTaskProcess(*slot.process, start, [&watch] { return watch(); });
    if (!started.ok()) return BuryWorker(slot, started.status());
    process = *std::move(started);
  }
  watch.Follow(process.get());
  absl::StatusOr<v1::WorkerResponse> response = Converse(*process, task, request, watch);
  if (!response.ok()) return Bury(process, response.status());
  process->Reap(/*kill=*/true);  // it has no more to say
  if (start.has_prepare()) {
    absl::MutexLock lock(&mu_);
    last_kind_ = std::move(start);
  }
  if (response->has_error()) return FromWorkerError(response->error());
  return response;
}

}  // namespace kiln::server
