#include "server/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/bounded_labels.h"
#include "server/observe/metric_table.h"

namespace kiln::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

constexpr size_t kMaxLibraryOps = 500;  // names come from clients
constexpr size_t kMaxTenantLabels = 32;

const Histogram::BucketBoundaries kCompileSeconds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120};
const Histogram::BucketBoundaries kStageSeconds = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03,
                                                   0.1,    0.3,    1,     3,     10,   30};
const Histogram::BucketBoundaries kQueueSeconds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                                   1,     3,     10,   30,   100, 300};
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

// A counter that its owner, the kernel, keeps: shown as it stands.
void SetTo(Counter& counter, double value) {
  counter.Increment(std::max(0.0, value - counter.Value()));
}

absl::string_view PriorityName(Priority priority) {
  return priority == Priority::kWarmup ? "warmup" : "interactive";
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
  Family<Counter>& cache_put_failures =
      AddCounter(registry, "kiln_cache_put_failures_total",
                 "Values that a tier of the caches did not take: no room, a full disk.");
  Family<Gauge>& cache_size =
      AddGauge(registry, "kiln_cache_size_bytes", "Bytes that each tier of the caches holds.");
  Family<Gauge>& cache_entries =
      AddGauge(registry, "kiln_cache_entries", "Entries that each tier of the caches holds.");
  Family<Counter>& cache_evictions =
      AddCounter(registry, "kiln_cache_evictions_total",
                 "Entries that a tier let go: to make room, or unread for too long.");
  Family<Gauge>& certificate_left =
      AddGauge(registry, "kiln_tls_certificate_remaining_seconds",
               "Time until the server's certificate expires, negative from then on.");
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
  Gauge& isolation_gaps =
      AddGauge(registry, "kiln_worker_isolation_gaps",
               "How much of the isolation of compile workers the system did not allow; 0 is all.")
          .Add({});
  Family<Counter>& worker_exits =
      AddCounter(registry, "kiln_worker_exits_total",
                 "Processes of workers and tasks that ended without a task's answer, by reason.");
  Family<Counter>& cubins = AddCounter(registry, "kiln_cubins_total",
                                       "Kernels of GPUs that ptxas took, or failed at, by result.");
  Family<Counter>& library_steps =
      AddCounter(registry, "kiln_library_steps_total",
                 "Operators of compiled graphs that were left to the client's library.");
  Family<Gauge>& build_info =
      AddGauge(registry, "kiln_build_info", "Always 1; the labels say what runs.");
  Family<Gauge>& target_build_info =
      AddGauge(registry, "kiln_target_build_info",
               "Always 1; the compiler build of each target, which is in its keys.");

  Family<Gauge>& tenant_queued =
      AddGauge(registry, "kiln_tenant_jobs_queued", "Jobs that wait, by who asked first.");
  Family<Gauge>& tenant_running =
      AddGauge(registry, "kiln_tenant_jobs_running", "Jobs that run, by who asked first.");
  Family<Counter>& tenant_compiles = AddCounter(registry, "kiln_tenant_compiles_total",
                                                "Compiles that ended, by who asked first.");
  Family<Counter>& tenant_refused = AddCounter(registry, "kiln_tenant_refused_total",
                                               "Calls and jobs turned away for want of room.");
  BoundedLabels tenants{kMaxTenantLabels};

  Family<Histogram>& hit_duration =
      AddHistogram(registry, "kiln_hit_duration_seconds",
                   "Time of each call that a cache answered, to its last byte.");
  Family<Counter>& tenant_hits =
      AddCounter(registry, "kiln_tenant_hits_total", "Calls that a cache answered.");
  Family<Counter>& rpc_sent =
      AddCounter(registry, "kiln_rpc_sent_bytes_total", "Bytes of artifacts sent to clients.");
  Family<Counter>& calls_rejected = AddCounter(registry, "kiln_calls_rejected_total",
                                               "Calls that the server turned away, by reason.");
  Family<Histogram>& queue_wait = AddHistogram(registry, "kiln_job_queue_wait_duration_seconds",
                                               "Time from a job's arrival to its start.");
  Family<Counter>& kernels_reused =
      AddCounter(registry, "kiln_kernels_reused_total", "Kernels of compiles that a cache had.");
  Counter& spans_exported = AddCounter(registry, "kiln_trace_spans_exported_total",
                                       "Spans that the trace collector took.")
                                .Add({});
  Family<Counter>& spans_dropped = AddCounter(registry, "kiln_trace_spans_dropped_total",
                                              "Spans that never reached the trace collector.");
  Family<Histogram>& remote_duration =
      AddHistogram(registry, "kiln_remote_request_duration_seconds",
                   "Time of each request to the shared tier, those refused at once included.");
  Family<Counter>& remote_writes = AddCounter(registry, "kiln_remote_writes_total",
                                              "Entries offered to the shared tier, by outcome.");
  Family<Gauge>& remote_nodes = AddGauge(registry, "kiln_remote_nodes",
                                         "Servers of the shared tier, by their circuit breaker.");
  Family<Gauge>& remote_queued_entries =
      AddGauge(registry, "kiln_remote_queued_entries", "Entries that wait to be shared.");
  Family<Gauge>& remote_deferred_entries =
      AddGauge(registry, "kiln_remote_deferred_entries",
               "Entries that are shared once nothing else waits to be.");
  Family<Gauge>& remote_queued_bytes = AddGauge(registry, "kiln_remote_queued_bytes",
                                                "Bytes of the entries that wait to be shared.");

  Gauge& connections =
      AddGauge(registry, "kiln_connections", "Open connections of the gRPC port.").Add({});
  Gauge& connections_max =
      AddGauge(registry, "kiln_connections_max", "How many connections are let in.").Add({});
  Family<Counter>& connections_refused =
      AddCounter(registry, "kiln_connections_refused_total",
                 "Connections of the gRPC port that were closed at once, by reason.");
  Gauge& descriptors_exhausted = AddGauge(registry, "kiln_descriptors_exhausted",
                                          "1 while no file descriptor is left, else 0.")
                                     .Add({});
  Counter& descriptor_exhaustions = AddCounter(registry, "kiln_descriptor_exhaustions_total",
                                               "How often no file descriptor was left.")
                                        .Add({});
  Gauge& incomplete_requests =
      AddGauge(registry, "kiln_incomplete_requests", "Requests of which not every byte has come.")
          .Add({});
  Gauge& incomplete_bytes = AddGauge(registry, "kiln_incomplete_request_bytes",
                                     "Bytes of requests that take long to come.")
                                .Add({});
  Family<Counter>& incomplete_refused =
      AddCounter(registry, "kiln_incomplete_requests_refused_total",
                 "Requests that were given up before every byte had come, by reason.");

  // Names and meanings of these are those of every Prometheus client library.
  Counter& process_cpu = AddCounter(registry, "process_cpu_seconds_total",
                                    "User and system time of kilnd, its workers left out.")
                             .Add({});
  Gauge& process_start =
      AddGauge(registry, "process_start_time_seconds", "Start of the process since the Unix epoch.")
          .Add({});
  Gauge& process_virtual =
      AddGauge(registry, "process_virtual_memory_bytes", "Size of the address space.").Add({});
  Gauge& process_resident =
      AddGauge(registry, "process_resident_memory_bytes", "Physical memory in use.").Add({});
  Gauge& process_open_fds =
      AddGauge(registry, "process_open_fds", "Open file descriptors.").Add({});
  Gauge& process_max_fds =
      AddGauge(registry, "process_max_fds", "Limit of open file descriptors.").Add({});
  Gauge& process_threads = AddGauge(registry, "process_threads", "Threads of the process.").Add({});
  Gauge& workers_resident = AddGauge(registry, "kiln_workers_resident_memory_bytes",
                                     "Physical memory in use by workers and their tasks; what a "
                                     "task shares with its worker counts for both.")
                                .Add({});

  // What calls and kernels touch.
  MetricTable<Histogram, 2, Histogram::BucketBoundaries> rpc_duration_of{
      rpc_duration, {"method", "code"}, kRpcSeconds};
  MetricTable<Histogram, 1, Histogram::BucketBoundaries> hit_duration_of{
      hit_duration, {"tier"}, kRpcSeconds};
  MetricTable<Histogram, 2, Histogram::BucketBoundaries> stage_duration_of{
      stage_duration, {"stage", "target"}, kStageSeconds};
  MetricTable<Histogram, 1, Histogram::BucketBoundaries> queue_wait_of{
      queue_wait, {"priority"}, kQueueSeconds};
  MetricTable<Counter, 3> cache_requests_of{cache_requests, {"kind", "tier", "result"}};
  MetricTable<Counter, 1> tenant_hits_of{tenant_hits, {"tenant"}};
  MetricTable<Counter, 1> rpc_sent_of{rpc_sent, {"method"}};
  MetricTable<Counter, 1> calls_rejected_of{calls_rejected, {"reason"}};
  MetricTable<Counter, 1> spans_dropped_of{spans_dropped, {"reason"}};
  MetricTable<Histogram, 2, Histogram::BucketBoundaries> remote_duration_of{
      remote_duration, {"operation", "result"}, kRpcSeconds};
  MetricTable<Counter, 1> remote_writes_of{remote_writes, {"result"}};

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
  for (const char* result : {"ok", "error"}) families_->cubins.Add({{"result", result}});
  for (const char* reason : {"queue_full", "refused", "unreachable"}) SpansDropped(reason, 0);
  for (const char* reason : {"queue_full", "limit", "draining", "graph_refused", "unauthenticated",
                             "permission_denied", "invalid_argument", "bad_graph", "unsupported"}) {
    families_->calls_rejected_of.At({reason});
  }
  const std::string tenant = families_->tenants.Label("default");
  for (const char* reason : {"queue", "evicted", "calls", "bytes"}) {
    families_->tenant_refused.Add({{"tenant", tenant}, {"reason", reason}});
  }
  for (const char* tier : {"memory", "disk"}) families_->hit_duration_of.At({tier});
  for (cache::EntryKind kind : {cache::EntryKind::kArtifact, cache::EntryKind::kKernel}) {
    for (const char* tier : {"memory", "disk"}) {
      for (cache::GetResult result : {cache::GetResult::kHit, cache::GetResult::kMiss,
                                      cache::GetResult::kCorrupt, cache::GetResult::kError}) {
        families_->cache_requests_of.At(
            {cache::EntryKindName(kind), tier, cache::GetResultName(result)});
      }
    }
  }
}

Metrics::~Metrics() = default;

void Metrics::AddTarget(absl::string_view target, absl::string_view compiler_build) {
  const std::string name(target);
  families_->target_build_info.Add({{"target", name}, {"build", std::string(compiler_build)}})
      .Set(1);
  for (const char* result : {"ok", "error", "cancelled"}) {
    families_->compile_duration.Add({{"target", name}, {"result", result}}, kCompileSeconds);
  }
  families_->kernels_compiled.Add({{"target", name}});
  families_->kernels_reused.Add({{"target", name}});
}

void Metrics::CompileDone(absl::string_view target, const absl::Status& status,
                          absl::Duration duration) {
  families_->compile_duration
      .Add({{"target", std::string(target)}, {"result", std::string(ResultOf(status))}},
           kCompileSeconds)
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::StageDone(absl::string_view stage, absl::string_view target,
                        absl::Duration duration) {
  families_->stage_duration_of.At({stage, target}).Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::RpcDone(absl::string_view method, absl::StatusCode code, absl::Duration duration) {
  families_->rpc_duration_of.At({method, absl::StatusCodeToString(code)})
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::CacheRequest(cache::EntryKind kind, absl::string_view tier, cache::GetResult result) {
  families_->cache_requests_of.At({cache::EntryKindName(kind), tier, cache::GetResultName(result)})
      .Increment();
}

void Metrics::CachePutFailed(cache::EntryKind kind, absl::string_view tier) {
  families_->cache_put_failures
      .Add({{"kind", std::string(cache::EntryKindName(kind))}, {"tier", std::string(tier)}})
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

void Metrics::KernelAssembled(bool ok) {
  families_->cubins.Add({{"result", ok ? "ok" : "error"}}).Increment();
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

void Metrics::TenantCompiled(absl::string_view tenant, const absl::Status& status) {
  families_->tenant_compiles
      .Add(
          {{"tenant", families_->tenants.Label(tenant)}, {"result", std::string(ResultOf(status))}})
      .Increment();
}

void Metrics::TenantRefused(absl::string_view tenant, absl::string_view reason) {
  families_->tenant_refused
      .Add({{"tenant", families_->tenants.Label(tenant)}, {"reason", std::string(reason)}})
      .Increment();
}

void Metrics::HitServed(absl::string_view tier, absl::string_view tenant, absl::Duration duration) {
  families_->hit_duration_of.At({tier}).Observe(absl::ToDoubleSeconds(duration));
  families_->tenant_hits_of.At({families_->tenants.Label(tenant)}).Increment();
}

void Metrics::RpcSent(absl::string_view method, int64_t bytes) {
  families_->rpc_sent_of.At({method}).Increment(static_cast<double>(bytes));
}

void Metrics::CallRejected(absl::string_view reason) {
  families_->calls_rejected_of.At({reason}).Increment();
}

void Metrics::JobStarted(Priority priority, absl::Duration waited) {
  families_->queue_wait_of.At({PriorityName(priority)}).Observe(absl::ToDoubleSeconds(waited));
}

void Metrics::KernelsReused(absl::string_view target, int64_t count) {
  families_->kernels_reused.Add({{"target", std::string(target)}})
      .Increment(static_cast<double>(count));
}

void Metrics::SpansExported(int64_t count) {
  families_->spans_exported.Increment(static_cast<double>(count));
}

void Metrics::SpansDropped(absl::string_view reason, int64_t count) {
  families_->spans_dropped_of.At({reason}).Increment(static_cast<double>(count));
}

void Metrics::RemoteDone(absl::string_view operation, bool ok, absl::Duration duration) {
  families_->remote_duration_of.At({operation, ok ? "ok" : "error"})
      .Observe(absl::ToDoubleSeconds(duration));
}

void Metrics::RemoteWritten(cache::WriteResult result) {
  families_->remote_writes_of.At({cache::WriteResultName(result)}).Increment();
}

void Metrics::NameTenants(const std::vector<std::string>& tenants) {
  for (const std::string& tenant : tenants) families_->tenants.Reserve(tenant);
}

std::string Metrics::Render(const GaugeValues& gauges) {
  Families& f = *families_;
  f.jobs_queued.Set(gauges.jobs_queued);
  f.jobs_running.Set(gauges.jobs_running);
  f.waiters.Set(gauges.waiters);
  f.workers.Add({{"state", "starting"}}).Set(gauges.workers_starting);
  f.workers.Add({{"state", "idle"}}).Set(gauges.workers_idle);
  f.workers.Add({{"state", "busy"}}).Set(gauges.workers_busy);
  f.isolation_gaps.Set(gauges.worker_isolation_gaps);
  std::map<std::string, TenantCounts> tenants;
  for (const std::string& label : f.tenants.All()) tenants[label];  // 0 where it has no job
  for (const TenantCounts& counts : gauges.tenants) {
    TenantCounts& sum = tenants[f.tenants.Label(counts.tenant)];
    sum.queued += counts.queued;
    sum.running += counts.running;
  }
  for (const auto& [label, counts] : tenants) {
    f.tenant_queued.Add({{"tenant", label}}).Set(counts.queued);
    f.tenant_running.Add({{"tenant", label}}).Set(counts.running);
  }
  for (const cache::Usage& usage : gauges.caches) {
    prometheus::Labels labels = {{"kind", std::string(cache::EntryKindName(usage.kind))},
                                 {"tier", std::string(usage.tier)}};
    f.cache_size.Add(labels).Set(static_cast<double>(usage.size_bytes));
    f.cache_entries.Add(labels).Set(static_cast<double>(usage.entries));
    labels["reason"] = "room";
    SetTo(f.cache_evictions.Add(labels), static_cast<double>(usage.evicted));
    labels["reason"] = "age";
    SetTo(f.cache_evictions.Add(labels), static_cast<double>(usage.expired));
  }
  ShowDoor(gauges.door);
  ShowProcess(gauges.process);
  if (gauges.remote) ShowRemote(*gauges.remote);
  if (gauges.certificate_left) {
    f.certificate_left.Add({}).Set(absl::ToDoubleSeconds(*gauges.certificate_left));
  }
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

void Metrics::ShowRemote(const cache::RemoteCounts& counts) {
  Families& f = *families_;
  f.remote_nodes.Add({{"breaker", "closed"}}).Set(counts.nodes.closed);
  f.remote_nodes.Add({{"breaker", "half_open"}}).Set(counts.nodes.half_open);
  f.remote_nodes.Add({{"breaker", "open"}}).Set(counts.nodes.open);
  f.remote_queued_entries.Add({}).Set(static_cast<double>(counts.queued_writes));
  f.remote_deferred_entries.Add({}).Set(static_cast<double>(counts.deferred_writes));
  f.remote_queued_bytes.Add({}).Set(static_cast<double>(counts.queued_bytes));
}

void Metrics::ShowDoor(const DoorCounts& counts) {
  Families& f = *families_;
  f.connections.Set(static_cast<double>(counts.connections));
  f.connections_max.Set(static_cast<double>(counts.max_connections));
  auto refused = [](Family<Counter>& family, const char* reason, int64_t count) {
    SetTo(family.Add({{"reason", reason}}), static_cast<double>(count));
  };
  refused(f.connections_refused, "limit", counts.refused_limit);
  refused(f.connections_refused, "address_limit", counts.refused_address_limit);
  refused(f.connections_refused, "descriptors", counts.refused_descriptors);
  f.descriptors_exhausted.Set(counts.out_of_descriptors ? 1 : 0);
  SetTo(f.descriptor_exhaustions, static_cast<double>(counts.exhaustions));
  f.incomplete_requests.Set(static_cast<double>(counts.incomplete_requests));
  f.incomplete_bytes.Set(static_cast<double>(counts.incomplete_request_bytes));
  refused(f.incomplete_refused, "bytes", counts.refused_bytes);
  refused(f.incomplete_refused, "time", counts.refused_time);
}

void Metrics::ShowProcess(const ProcessStats& stats) {
  Families& f = *families_;
  SetTo(f.process_cpu, stats.cpu_seconds);
  f.process_start.Set(stats.start_unix_seconds);
  f.process_virtual.Set(static_cast<double>(stats.virtual_bytes));
  f.process_resident.Set(static_cast<double>(stats.resident_bytes));
  f.process_open_fds.Set(static_cast<double>(stats.open_fds));
  f.process_max_fds.Set(static_cast<double>(stats.max_fds));
  f.process_threads.Set(static_cast<double>(stats.threads));
  f.workers_resident.Set(static_cast<double>(stats.children_resident_bytes));
}

}  // namespace kiln::server
