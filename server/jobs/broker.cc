#include "server/jobs/broker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"
#include "server/jobs/busy.h"
#include "server/observe/tracing.h"

namespace kiln::server {
namespace {

// Workers take a warm-up job's tasks as if it had started this many jobs later.
constexpr int64_t kWarmupHandicapJobs = 64;
// Telling a thousand waiters of each kernel would take the processors that compile it.
constexpr absl::Duration kReportCostPerWaiter = absl::Microseconds(500);

FairQueueOptions QueueOptions(const BrokerOptions& options) {
  int max_running = options.tenant_max_running;
  if (max_running == 0) max_running = std::max(1, options.job_threads - 1);
  return {options.max_queued_jobs, options.tenant_max_queued, max_running, options.tenant_weights};
}

absl::Status Draining() {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_DRAINING);
  return WithDetail(absl::UnavailableError("the server is about to stop and takes no compiles"),
                    detail);
}

double TenthsOfMs(absl::Duration duration) {
  return std::round(absl::ToDoubleMilliseconds(duration) * 10) / 10;
}

}  // namespace

struct Broker::Job {
  CompileJobInput input;
  Caller caller;  // who asked first
  Span span;      // from the job's arrival to its answer
  absl::Time created = absl::Now();
  std::shared_ptr<JobControl> control = std::make_shared<JobControl>();
  // Of the thread that has the job.
  absl::Time started;
  bool waited_for_another = false;  // server
  bool leased = false;
  // Under the broker's lock.
  std::map<int64_t, CompileCallbacks> waiters;
  int64_t leader = 0;
  std::shared_ptr<void> room;
  absl::Time next_report = absl::InfinitePast();
  // How often the last waiter left.
  int64_t departures = 0;
};

Broker::Broker(BrokerOptions options, CompileJobContext context, cache::Store* known,
               cache::Leases* leases)
    : options_(std::move(options)),
      context_(std::move(context)),
      known_(*known),
      refusals_(options_.refusal_period),
      queue_(QueueOptions(options_)) {
  if (leases != nullptr) {
    lease_watch_ = std::make_unique<LeaseWatch>(options_.lease, leases, known);
  }
  for (int i = 0; i < options_.job_threads; ++i) threads_.emplace_back([this] { RunThread(); });
  threads_.emplace_back([this] { RunLingerThread(); });
}

Broker::~Broker() {
  std::vector<CompileCallbacks> left;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (const auto& job : active_) job->control->Stop();
    for (auto& [key, job] : jobs_) {
      for (auto& [number, callbacks] : job->waiters) left.push_back(std::move(callbacks));
      job->waiters.clear();
    }
    jobs_.clear();
    queued_.clear();
    parked_.clear();
    ready_.clear();
    waiters_ = 0;
  }
  for (const CompileCallbacks& callbacks : left) {
    callbacks.done(absl::CancelledError("the server stops"));
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Broker::NoRoom(const absl::Status& why) const {
  double rounds = static_cast<double>(Waiting()) / options_.job_threads;
  absl::Duration wait =
      std::clamp(queue_.typical_duration() * rounds, absl::Milliseconds(100), absl::Seconds(30));
  return BusyError(why.message(), wait);
}

absl::StatusOr<Broker::JobPtr> Broker::NewJob(CompileJobInput input, const Caller& caller,
                                              std::vector<CompileCallbacks>& evicted) {
  if (draining_ || stopping_) return Draining();
  // Parked jobs have left the queue but hold a request as those in it do.
  if (static_cast<int>(parked_.size()) >= options_.max_queued_jobs) {
    return NoRoom(absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", parked_.size(), " compiles of other servers are waited for")));
  }
  FairQueue::Pushed pushed = queue_.Push(input.number, caller.tenant, caller.priority);
  if (!pushed.status.ok()) {
    context_.metrics.TenantRefused(caller.tenant, "queue");
    context_.observer->JobRefused(caller.tenant);
    return NoRoom(pushed.status);
  }
  if (pushed.evicted) {
    JobPtr victim = queued_[*pushed.evicted];
    context_.metrics.TenantRefused(victim->caller.tenant, "evicted");
    context_.observer->JobRefused(victim->caller.tenant);
    for (auto& [number, callbacks] : victim->waiters) evicted.push_back(std::move(callbacks));
    waiters_ -= static_cast<int>(victim->waiters.size());
    victim->waiters.clear();
    Drop(victim);
  }
  auto job = std::make_shared<Job>();
  job->input = std::move(input);
  job->caller = caller;
  job->span = Span::BeginPart(caller.trace, "job");
  job->input.trace = job->span.context();
  jobs_[job->input.key] = job;
  queued_[job->input.number] = job;
  context_.observer->JobQueued(job->input.number, job->input.key, job->input.request, caller);
  return job;
}

absl::StatusOr<Broker::Ticket> Broker::Join(const Digest& key,
                                            std::shared_ptr<const v1::CompileRequest> request,
                                            const Caller& caller, CompileCallbacks callbacks,
                                            std::shared_ptr<void> room) {
  if (absl::Status status = refusals_.Check(key); !status.ok()) {
    context_.metrics.GraphRefused();
    return status;
  }
  std::vector<CompileCallbacks> evicted;
  absl::Status evicted_status;
  Ticket ticket;
  {
    absl::MutexLock lock(&mu_);
    int64_t number = next_number_++;
    JobPtr job;
    if (auto it = jobs_.find(key); it != jobs_.end()) {
      job = it->second;
      context_.metrics.JobCoalesced();
      context_.observer->JobJoined(job->input.number);
    } else {
      KILN_ASSIGN_OR_RETURN(job,
                            NewJob({number, number, key, std::move(request)}, caller, evicted));
    }
    if (!evicted.empty()) {
      evicted_status = NoRoom(absl::ResourceExhaustedError(
          "the queue is full, and others have less than their share of it"));
    }
    if (job->room == nullptr) job->room = std::move(room);
    if (job->waiters.empty()) job->leader = number;
    job->waiters.emplace(number, std::move(callbacks));
    ++waiters_;
    ticket = {key, job->input.number, number};
  }
  for (const CompileCallbacks& victim : evicted) victim.done(evicted_status);
  return ticket;
}

void Broker::Leave(const Ticket& ticket, Departure departure) {
  absl::MutexLock lock(&mu_);
  auto it = jobs_.find(ticket.key);
  if (it == jobs_.end() || it->second->input.number != ticket.job) return;
  JobPtr job = it->second;
  if (job->waiters.erase(ticket.waiter) == 0) return;
  --waiters_;
  if (!job->waiters.empty()) return;
  if (departure == Departure::kFinal) return Drop(job);
  lingering_.emplace(absl::Now() + options_.reattach_grace, Lingering{job, ++job->departures});
}

void Broker::Drop(const JobPtr& job) {
  context_.observer->JobEnded(job->input.number,
                              absl::CancelledError("nobody waits for it any more"), "");
  job->control->Stop();
  if (auto it = jobs_.find(job->input.key); it != jobs_.end() && it->second == job) jobs_.erase(it);
  queue_.Remove(job->input.number);
  queued_.erase(job->input.number);
  if (parked_.erase(job) > 0) lease_watch_->Forget(job->input.key);
  // A job that is ready may hold a lease: a job thread lets go of it.
}

bool Broker::IsAlone(const JobPtr& job, int64_t departure) const {
  auto it = jobs_.find(job->input.key);
  return it != jobs_.end() && it->second == job && job->waiters.empty() &&
         job->departures == departure;
}

void Broker::StopAlone(const Lingering& lingering) {
  JobPtr job = lingering.job.lock();
  if (job != nullptr && IsAlone(job, lingering.departure)) Drop(job);
}

void Broker::RunLingerThread() {
  absl::MutexLock lock(&mu_);
  while (true) {
    mu_.Await(absl::Condition(
        +[](Broker* b)
             ABSL_SHARED_LOCKS_REQUIRED(b->mu_) { return b->stopping_ || !b->lingering_.empty(); },
        this));
    if (stopping_) return;
    // All have the same time to come back: the first stays the first.
    mu_.AwaitWithDeadline(absl::Condition(&stopping_), lingering_.begin()->first);
    if (stopping_) return;
    while (!lingering_.empty() && lingering_.begin()->first <= absl::Now()) {
      StopAlone(lingering_.begin()->second);
      lingering_.erase(lingering_.begin());
    }
  }
}

void Broker::StartDrain() {
  absl::MutexLock lock(&mu_);
  draining_ = true;
}

bool Broker::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &Broker::IsIdle), timeout);
}

BrokerCounts Broker::Counts() {
  absl::MutexLock lock(&mu_);
  return {Waiting(), running_, waiters_, queue_.Tenants()};
}

Broker::JobPtr Broker::NextJob() {
  JobPtr job;
  if (!ready_.empty()) {
    job = std::move(ready_.front());
    ready_.pop_front();
    queue_.Resume(job->input.number, job->caller.tenant, job->caller.priority);
  } else {
    auto place = queued_.find(*queue_.Pop());
    job = std::move(place->second);
    queued_.erase(place);
  }
  bool warmup = job->caller.priority == Priority::kWarmup;
  job->input.order = ++started_ + (warmup ? kWarmupHandicapJobs : 0);
  active_.push_back(job);
  ++running_;
  return job;
}

void Broker::RunThread() {
  while (true) {
    JobPtr job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Broker::CanRun));
      if (stopping_) return;
      job = NextJob();
    }
    RunJob(job);
  }
}

void Broker::RunJob(const JobPtr& job) {
  job->started = absl::Now();
  context_.observer->JobStarted(job->input.number);
  if (!job->waited_for_another) {
    context_.metrics.JobStarted(job->caller.priority, job->started - job->created);
    RecordSpan(job->input.trace, "queue", job->created, job->started - job->created);
  }
  absl::StatusOr<CompileAnswer> answer = absl::CancelledError("nobody waits for it any more");
  if (!job->control->stopped()) {
    auto found = TracedGet(job->input.trace, known_, {cache::EntryKind::kArtifact, job->input.key});
    if (!found.ok() && ParkedForAnother(job)) return;
    answer = found.ok() ? CompileAnswer{found->entry, found->tier} : Compile(job);
  }
  Finish(job, answer);
}

bool Broker::ParkedForAnother(const JobPtr& job) {
  if (lease_watch_ == nullptr || job->waited_for_another) return false;
  cache::LeaseOutcome outcome = lease_watch_->Acquire(job->input.key);
  job->leased = outcome == cache::LeaseOutcome::kHeld;
  if (outcome != cache::LeaseOutcome::kBusy) return false;
  Log(LogLevel::kInfo, "another server compiles it", {{"key", job->input.key.ShortHex()}});
  {
    absl::MutexLock lock(&mu_);
    active_.erase(std::find(active_.begin(), active_.end(), job));
    --running_;
    queue_.Done(job->input.number, absl::ZeroDuration());
    if (stopping_ || job->control->stopped()) return true;
    parked_.insert(job);
    // Under the lock, so that a Forget cannot come before.
    lease_watch_->Await(job->input.key,
                        [this, job](const LeaseWatch::Answer& found) { Resume(job, found); });
  }
  return true;
}

void Broker::Resume(const JobPtr& job, const LeaseWatch::Answer& answer) {
  bool wanted = false;
  {
    absl::MutexLock lock(&mu_);
    wanted = parked_.erase(job) > 0;
    if (wanted) {
      job->waited_for_another = true;
      job->leased = answer.held;
      if (answer.found) {
        active_.push_back(job);
        ++running_;
      } else {
        ready_.push_back(job);
      }
    }
  }
  if (!wanted && answer.held) lease_watch_->Release(job->input.key);
  if (wanted && answer.found) Finish(job, CompileAnswer{answer.found->entry, answer.found->tier});
}

void Broker::EndSpan(Job& job, const absl::StatusOr<CompileAnswer>& answer) {
  if (!job.span.recording()) return;
  job.span.Set("kiln.job", job.input.number);
  job.span.Set("kiln.key", job.input.key.ShortHex());
  job.span.Set("kiln.graph", job.input.request->graph().name());
  job.span.Set("kiln.target", std::string(TargetName(job.input.request->device().target())));
  if (answer.ok()) job.span.Set("kiln.source", std::string(answer->source));
  job.span.SetStatus(answer.status());
  job.span.End();
}

absl::StatusOr<CompileAnswer> Broker::Compile(const JobPtr& job) {
  absl::Time start = absl::Now();
  CompileJobOutcome outcome =
      RunCompileJob(context_, job->input, job->control,
                    [this, weak = std::weak_ptr<Job>(job)](const v1::Progress& progress) {
                      if (auto strong = weak.lock()) Report(strong, progress);
                    });
  absl::Duration took = absl::Now() - start;
  absl::string_view target = TargetName(job->input.request->device().target());
  context_.metrics.CompileDone(target, outcome.artifact.status(), took);
  context_.metrics.TenantCompiled(job->caller.tenant, outcome.artifact.status());
  if (outcome.artifact.ok()) {
    refusals_.Forget(job->input.key);
  } else if (IsWorkerDeath(outcome.artifact.status())) {
    refusals_.Refuse(job->input.key, outcome.worker_deaths);
  } else {
    refusals_.RecordDeaths(job->input.key, outcome.worker_deaths);
  }
  Log(LogLevel::kInfo, "compile",
      {{"job", job->input.number},
       {"tenant", job->caller.tenant},
       {"trace", job->input.trace.valid() ? job->input.trace.TraceIdHex() : "-"},
       {"key", job->input.key.ShortHex()},
       {"target", std::string(target)},
       {"graph", job->input.request->graph().name()},
       {"queued_ms", TenthsOfMs(start - job->created)},
       {"ms", TenthsOfMs(took)},
       {"stages", outcome.stages},
       {"kernels", outcome.kernels_total},
       {"cached", outcome.kernels_cached},
       {"outcome", outcome.artifact.ok() ? "OK" : outcome.artifact.status().ToString()}});
  if (!outcome.artifact.ok()) return outcome.artifact.status();
  return CompileAnswer{*outcome.artifact, "compiled"};
}

void Broker::Finish(const JobPtr& job, const absl::StatusOr<CompileAnswer>& answer) {
  EndSpan(*job, answer);
  context_.observer->JobEnded(job->input.number, answer.status(),
                              answer.ok() ? answer->source : "");
  std::map<int64_t, CompileCallbacks> waiters;
  {
    absl::MutexLock lock(&mu_);
    waiters.swap(job->waiters);
    job->room = nullptr;  // others may keep the job's request for longer, within bounds of theirs
    waiters_ -= static_cast<int>(waiters.size());
    auto it = jobs_.find(job->input.key);
    if (it != jobs_.end() && it->second == job) jobs_.erase(it);
    queue_.Done(job->input.number, absl::Now() - job->started);
  }
  for (const auto& [number, callbacks] : waiters) {
    absl::StatusOr<CompileAnswer> own = answer;
    if (own.ok()) own->trace = job->input.trace;
    if (own.ok() && own->source == "compiled" && number != job->leader) own->source = "coalesced";
    callbacks.done(own);
  }
  // After what was compiled is stored, and after the waiters: they need not wait for it.
  if (std::exchange(job->leased, false)) lease_watch_->Release(job->input.key);
  absl::MutexLock lock(&mu_);
  active_.erase(std::find(active_.begin(), active_.end(), job));
  --running_;  // only now: a drain waits until everyone has an answer
}

void Broker::Report(const JobPtr& job, const v1::Progress& progress) {
  std::vector<ProgressSink> sinks;
  {
    absl::MutexLock lock(&mu_);
    absl::Time now = absl::Now();
    if (now < job->next_report) return;
    if (job->waiters.size() > 1)
      job->next_report = now + kReportCostPerWaiter * job->waiters.size();
    for (const auto& [number, callbacks] : job->waiters) sinks.push_back(callbacks.progress);
  }
  for (const ProgressSink& sink : sinks) sink(progress);
}

}  // namespace kiln::server
