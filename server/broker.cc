#include "server/broker.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::server {

struct Broker::Job {
  CompileJobInput input;
  absl::Time created = absl::Now();
  std::shared_ptr<JobControl> control = std::make_shared<JobControl>();
  // Under the broker's lock.
  std::map<int64_t, CompileCallbacks> waiters;
  int64_t leader = 0;
};

Broker::Broker(BrokerOptions options, CompileJobContext context, cache::Store* known)
    : options_(options),
      context_(std::move(context)),
      known_(*known),
      refusals_(options.refusal_period) {
  for (int i = 0; i < options_.job_threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

Broker::~Broker() {
  std::vector<CompileCallbacks> left;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    queue_.clear();
    for (const auto& job : active_) job->control->Stop();
    for (auto& [key, job] : jobs_) {
      for (auto& [number, callbacks] : job->waiters) left.push_back(std::move(callbacks));
      job->waiters.clear();
    }
    jobs_.clear();
    waiters_ = 0;
  }
  for (const CompileCallbacks& callbacks : left) {
    callbacks.done(absl::CancelledError("the server stops"));
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Broker::QueueFull() const {
  double rounds = static_cast<double>(queue_.size()) / options_.job_threads;
  absl::Duration wait =
      std::clamp(typical_duration_ * rounds, absl::Milliseconds(100), absl::Seconds(30));
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_QUEUE_FULL);
  detail.set_retry_after_ms(absl::ToInt64Milliseconds(wait));
  return WithDetail(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queue_.size(),
                                                              " compiles wait; try again in ",
                                                              absl::FormatDuration(wait))),
                    detail);
}

absl::StatusOr<Broker::Ticket> Broker::Join(const Digest& key,
                                            std::shared_ptr<const v1::CompileRequest> request,
                                            const Caller& caller, CompileCallbacks callbacks) {
  if (absl::Status status = refusals_.Check(key); !status.ok()) {
    context_.metrics.GraphRefused();
    return status;
  }
  absl::MutexLock lock(&mu_);
  int64_t number = next_number_++;
  std::shared_ptr<Job> job;
  if (auto it = jobs_.find(key); it != jobs_.end()) {
    job = it->second;
    context_.metrics.JobCoalesced();
  } else {
    if (draining_ || stopping_) {
      v1::ErrorDetail detail;
      detail.set_reason(v1::ErrorDetail::REASON_DRAINING);
      return WithDetail(absl::UnavailableError("the server is about to stop and takes no compiles"),
                        detail);
    }
    if (static_cast<int>(queue_.size()) >= options_.max_queued_jobs) return QueueFull();
    job = std::make_shared<Job>();
    job->input = {number, key, std::move(request)};
    job->leader = number;
    jobs_[key] = job;
    queue_.push_back(job);
  }
  job->waiters.emplace(number, std::move(callbacks));
  ++waiters_;
  return Ticket{key, job->input.number, number};
}

void Broker::Leave(const Ticket& ticket) {
  absl::MutexLock lock(&mu_);
  auto it = jobs_.find(ticket.key);
  if (it == jobs_.end() || it->second->input.number != ticket.job) return;
  std::shared_ptr<Job> job = it->second;
  if (job->waiters.erase(ticket.waiter) == 0) return;
  --waiters_;
  if (!job->waiters.empty()) return;
  job->control->Stop();
  jobs_.erase(it);
  queue_.erase(std::remove(queue_.begin(), queue_.end(), job), queue_.end());
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
  return {static_cast<int>(queue_.size()), running_, waiters_};
}

void Broker::RunThread() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Broker::CanRun));
      if (stopping_) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      active_.push_back(job);
      ++running_;
    }
    RunJob(job);
  }
}

absl::StatusOr<CompileAnswer> Broker::FindOrCompile(const std::shared_ptr<Job>& job,
                                                    absl::Time start) {
  if (auto found = known_.Get({cache::EntryKind::kArtifact, job->input.key}); found.ok()) {
    return CompileAnswer{found->entry, found->tier};
  }
  CompileJobOutcome outcome =
      RunCompileJob(context_, job->input, job->control,
                    [this, weak = std::weak_ptr<Job>(job)](const v1::Progress& progress) {
                      if (auto strong = weak.lock()) Report(strong, progress);
                    });
  absl::Duration took = absl::Now() - start;
  absl::string_view target = TargetLabel(job->input.request->device().target());
  context_.metrics.CompileDone(target, outcome.artifact.status(), took);
  if (outcome.artifact.ok()) {
    refusals_.Forget(job->input.key);
  } else {
    refusals_.RecordDeaths(job->input.key, outcome.worker_deaths);
  }
  Log(LogLevel::kInfo, "compile",
      {{"job", absl::StrCat(job->input.number)},
       {"key", job->input.key.ShortHex()},
       {"target", std::string(target)},
       {"graph", job->input.request->graph().name()},
       {"queued_ms", absl::StrFormat("%.1f", absl::ToDoubleMilliseconds(start - job->created))},
       {"ms", absl::StrFormat("%.1f", absl::ToDoubleMilliseconds(took))},
       {"stages", outcome.stages},
       {"kernels", absl::StrCat(outcome.kernels_total)},
       {"cached", absl::StrCat(outcome.kernels_cached)},
       {"outcome", outcome.artifact.ok() ? "OK" : outcome.artifact.status().ToString()}});
  if (!outcome.artifact.ok()) return outcome.artifact.status();
  return CompileAnswer{*outcome.artifact, "compiled"};
}

void Broker::RunJob(const std::shared_ptr<Job>& job) {
  absl::Time start = absl::Now();
  absl::StatusOr<CompileAnswer> answer = FindOrCompile(job, start);
  std::map<int64_t, CompileCallbacks> waiters;
  {
    absl::MutexLock lock(&mu_);
    waiters.swap(job->waiters);
    waiters_ -= static_cast<int>(waiters.size());
    auto it = jobs_.find(job->input.key);
    if (it != jobs_.end() && it->second == job) jobs_.erase(it);
    typical_duration_ = (typical_duration_ * 7 + (absl::Now() - start)) / 8;
  }
  for (const auto& [number, callbacks] : waiters) {
    absl::StatusOr<CompileAnswer> own = answer;
    if (own.ok() && own->source == "compiled" && number != job->leader) own->source = "coalesced";
    callbacks.done(own);
  }
  absl::MutexLock lock(&mu_);
  active_.erase(std::find(active_.begin(), active_.end(), job));
  --running_;  // only now: a drain waits until everyone has an answer
}

void Broker::Report(const std::shared_ptr<Job>& job, const v1::Progress& progress) {
  std::vector<ProgressSink> sinks;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [number, callbacks] : job->waiters) sinks.push_back(callbacks.progress);
  }
  for (const ProgressSink& sink : sinks) sink(progress);
}

}  // namespace kiln::server
