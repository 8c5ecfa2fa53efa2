#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace kiln::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

constexpr size_t kMaxLibraryOps = 500;  // names come from clients

const Histogram::BucketBoundaries kCompileSeconds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120};
const Histogram::BucketBoundaries kStageSeconds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                                   0.1,    0.3,    1,     3,     10,   30};
const Histogram::BucketBoundaries kRpcSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                 0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                                 1,      2.5,     10,     60};

Family<Counter>& AddCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& AddGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& AddHistogram(prometheus::Registry& registry, const char* name,
                                const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

absl::string_view ResultOf(const absl::Status& status) {
  if (status.ok()) return "ok";
  return absl::IsCancelled(status) ? "cancelled" : "error";
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  Family<Histogram>& compile_duration = AddHistogram(registry, "kiln_compile_duration_seconds",
                                                     "Time from a job's start to its artifact.");
  Family<Histogram>& stage_duration = AddHistogram(registry, "kiln_compile_stage_duration_seconds",
                                                   "Time of each stage of a compile.");
  Family<Histogram>& rpc_duration =
      AddHistogram(registry, "kiln_rpc_duration_seconds", "Time of each call, streams included.");
  Family<Counter>& cache_requests =
      AddCounter(registry, "kiln_cache_requests_total", "Reads of each tier of the caches.");
  Family<Gauge>& cache_size =
      AddGauge(registry, "kiln_cache_size_bytes", "Bytes that each tier of the caches holds.");
  Family<Gauge>& cache_entries =
      AddGauge(registry, "kiln_cache_entries", "Entries that each tier of the caches holds.");
  Gauge& jobs_queued =
      AddGauge(registry, "kiln_jobs_queued", "Jobs that wait for a place to run.").Add({});
  Gauge& jobs_running = AddGauge(registry, "kiln_jobs_running", "Jobs that run.").Add({});
  Gauge& waiters = AddGauge(registry, "kiln_waiters", "Calls that wait for a job.").Add({});
  Counter& coalesced = AddCounter(registry, "kiln_jobs_coalesced_total",
                                  "Calls that joined a job that was there already.")
                           .Add({});
  Family<Counter>& kernels_compiled = AddCounter(registry, "kiln_kernels_compiled_total",
                                                 "Kernels that no cache had and Clang compiled.");
  Counter& graphs_refused =
      AddCounter(registry, "kiln_graphs_refused_total",
                 "Compiles refused because their graph had killed workers before.")
          .Add({});
  Family<Gauge>& workers = AddGauge(registry, "kiln_workers", "Worker processes by state.");
  Family<Counter>& worker_exits =
      AddCounter(registry, "kiln_worker_exits_total", "Worker processes that ended, by reason.");
  Family<Counter>& library_steps =
      AddCounter(registry, "kiln_library_steps_total",
                 "Operators of compiled graphs that were left to the client's library.");
  Family<Gauge>& build_info =
      AddGauge(registry, "kiln_build_info", "Always 1; the labels say what runs.");

  absl::Mutex mu;
  absl::flat_hash_set<std::string> library_ops ABSL_GUARDED_BY(mu);
};

Metrics::Metrics(absl::string_view version, absl::string_view compiler_build)
    : families_(std::make_unique<Families>()) {
  families_->build_info
      .Add({{"version", std::string(version)}, {"build", std::string(compiler_build)}})
      .Set(1);
  // Counters that alerts look at exist from the start.
  for (ExitReason reason :
       {ExitReason::kNormal, ExitReason::kCrash, ExitReason::kTimeout, ExitReason::kMemory}) {
    families_->worker_exits.Add({{"reason", std::string(ExitReasonName(reason))}});
  }
}

Metrics::~Metrics() = default;

void Metrics::CompileDone(absl::string_view target, const absl::Status& status,
                          absl::Duration duration) {
  families_->compile_duration
      .Add({{"target", std::string(target)}, {"result", std::string(ResultOf(status))}},
           kCompileSeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::StageDone(absl::string_view stage, absl::string_view target,
                        absl::Duration duration) {
  families_->stage_duration
      .Add({{"stage", std::string(stage)}, {"target", std::string(target)}}, kStageSeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::RpcDone(absl::string_view method, absl::StatusCode code, absl::Duration duration) {
  families_->rpc_duration
      .Add({{"method", std::string(method)}, {"code", absl::StatusCodeToString(code)}}, kRpcSeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CacheRequest(cache::EntryKind kind, absl::string_view tier, cache::GetResult result) {
  families_->cache_requests
      .Add({{"kind", std::string(cache::EntryKindName(kind))},
            {"tier", std::string(tier)},
            {"result", std::string(cache::GetResultName(result))}})
      .Increment();
}

void Metrics::JobCoalesced() {
  families_->coalesced.Increment();
}

void Metrics::KernelCompiled(absl::string_view target) {
  families_->kernels_compiled.Add({{"target", std::string(target)}}).Increment();
}

void Metrics::GraphRefused() {
  families_->graphs_refused.Increment();
}

void Metrics::WorkerExited(ExitReason reason) {
  families_->worker_exits.Add({{"reason", std::string(ExitReasonName(reason))}}).Increment();
}

void Metrics::LibraryStep(absl::string_view op) {
  std::string label(op);
  {
    absl::MutexLock lock(&families_->mu);
    auto& known = families_->library_ops;
    if (!known.contains(label) && known.size() >= kMaxLibraryOps) {
      label = "other";
    } else {
      known.insert(label);
    }
  }
  families_->library_steps.Add({{"op", label}}).Increment();
}

std::string Metrics::Render(const GaugeValues& gauges) {
  Families& f = *families_;
  f.jobs_queued.Set(gauges.jobs_queued);
  f.jobs_running.Set(gauges.jobs_running);
  f.waiters.Set(gauges.waiters);
  f.workers.Add({{"state", "starting"}}).Set(gauges.workers_starting);
  f.workers.Add({{"state", "idle"}}).Set(gauges.workers_idle);
  f.workers.Add({{"state", "busy"}}).Set(gauges.workers_busy);
  for (const cache::Usage& usage : gauges.caches) {
    prometheus::Labels labels = {{"kind", std::string(cache::EntryKindName(usage.kind))},
                                 {"tier", std::string(usage.tier)}};
    f.cache_size.Add(labels).Set(static_cast<double>(usage.size_bytes));
    f.cache_entries.Add(labels).Set(static_cast<double>(usage.entries));
  }
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

}  // namespace kiln::server
