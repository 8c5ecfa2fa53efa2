// kilnd: the composition root, the only place that makes concrete parts and joins them.
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/data_dir.h"
#include "cache/memory_store.h"
#include "cache/metered_store.h"
#include "cache/remote/remote_tier.h"
#include "cache/rocksdb_store.h"
#include "cache/tiered_store.h"
#include "cache/verifying_store.h"
#include "compiler/compiler.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/compiler_builds.h"
#include "proto/base/device_cpu.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/scheduling.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"
#include "server/calls/executor.h"
#include "server/config.h"
#include "server/drain.h"
#include "server/exposure.h"
#include "server/jobs/admission.h"
#include "server/jobs/broker.h"
#include "server/jobs/kernel_compiler.h"
#include "server/net/listen.h"
#include "server/notify.h"
#include "server/observe/activity.h"
#include "server/observe/grpc_log.h"
#include "server/observe/metrics.h"
#include "server/observe/process_stats.h"
#include "server/observe/span_exporter.h"
#include "server/observe/tracing.h"
#include "server/remote_settings.h"
#include "server/rpc/health.h"
#include "server/rpc_listener.h"
#include "server/security/artifact_signer.h"
#include "server/security/auth.h"
#include "server/security/credentials.h"
#include "server/service.h"
#include "server/web/activity_report.h"
#include "server/web/compile_details.h"
#include "server/web/http.h"
#include "server/web/http_guard.h"
#include "server/web/pages.h"
#include "server/workers/ptxas.h"
#include "server/workers/worker.h"
#include "server/workers/worker_pool.h"

namespace kiln::server {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInUse = 75;      // EX_TEMPFAIL
constexpr int kExitBadConfig = 78;  // EX_CONFIG
constexpr int kIoThreads = 4;
constexpr int kBackgroundThreads = 4;
// They do nothing but wait for the shared tier: about as many as it has connections.
constexpr int kNetworkThreads = 16;
constexpr size_t kMaxQueuedLookups = 256;  // more are misses
constexpr int kUpkeepThreads = 2;
constexpr int kBackgroundNiceness = 2;  // between hits and the workers
constexpr size_t kMaxQueuedCalls = 4096;
constexpr absl::Duration kAssemblyLimit = absl::Seconds(30);
constexpr absl::Duration kAssemblerStartLimit = absl::Seconds(10);
constexpr absl::Duration kWorkerStartLimit = absl::Seconds(30);

// The caches as they are stacked: memory over verified disk, each tier counted. Memory holds only
// what was verified when it was read or made.
struct Caches {
  std::unique_ptr<cache::Store> memory;
  std::unique_ptr<cache::PinningStore> disk;
  std::unique_ptr<cache::Store> verified_disk;
  std::unique_ptr<cache::Store> metered_memory;
  std::unique_ptr<cache::Store> metered_disk;
  std::unique_ptr<cache::RemoteTier> remote;  // null where none is shared; under the disk
  std::unique_ptr<cache::Store> metered_remote;
  std::unique_ptr<cache::Store> durable;            // disk over remote, counted
  std::unique_ptr<cache::Store> unmetered_durable;  // the same, for second looks
  std::unique_ptr<cache::Store> local;              // memory over disk
  std::unique_ptr<cache::Store> shared_durable;     // disk over remote, of which remote is counted
  std::unique_ptr<cache::Store> shared;             // memory over it; null where none is shared
  std::unique_ptr<cache::Store> all;                // what jobs use
  std::unique_ptr<cache::Store> unmetered;  // the same entries, for second looks that do not count
};

absl::StatusOr<Caches> OpenCaches(const Config& config, const SigningKey* signing_key,
                                  Metrics& metrics) {
  auto observe = [&metrics](absl::string_view tier) {
    return [&metrics, tier](cache::EntryKind kind, cache::GetResult result) {
      metrics.CacheRequest(kind, tier, result);
    };
  };
  Caches caches;
  cache::RocksDbOptions options;
  options.path = absl::StrCat(config.data_dir, "/cache");
  options.max_bytes = config.cache_max_size_bytes;
  options.max_age = config.cache_max_age;
  KILN_ASSIGN_OR_RETURN(caches.disk, cache::OpenRocksDbStore(options));
  caches.memory = cache::MakeMemoryStore(config.cache_memory_size_bytes);
  caches.verified_disk = cache::MakeVerifyingStore(caches.disk.get());
  caches.metered_memory = cache::MakeMeteredStore(caches.memory.get(), observe("memory"));
  caches.metered_disk = cache::MakeMeteredStore(
      caches.verified_disk.get(), observe("disk"),
      [&metrics](cache::EntryKind kind) { metrics.CachePutFailed(kind, "disk"); });
  caches.local = cache::MakeTieredStore(caches.metered_memory.get(), caches.metered_disk.get());
  cache::Store* lower = caches.metered_disk.get();
  cache::Store* unmetered_lower = caches.verified_disk.get();
  KILN_ASSIGN_OR_RETURN(caches.remote,
                        OpenRemoteTier(config.remote, signing_key, *caches.verified_disk, metrics));
  if (caches.remote != nullptr) {
    cache::Store* remote = &caches.remote->store();
    caches.metered_remote = cache::MakeMeteredStore(remote, observe("remote"));
    caches.durable = cache::MakeTieredStore(lower, caches.metered_remote.get());
    caches.unmetered_durable = cache::MakeTieredStore(unmetered_lower, remote);
    caches.shared_durable = cache::MakeTieredStore(unmetered_lower, caches.metered_remote.get());
    caches.shared = cache::MakeTieredStore(caches.memory.get(), caches.shared_durable.get());
    lower = caches.durable.get();
    unmetered_lower = caches.unmetered_durable.get();
  }
  caches.all = cache::MakeTieredStore(caches.metered_memory.get(), lower);
  caches.unmetered = cache::MakeTieredStore(caches.memory.get(), unmetered_lower);
  return caches;
}

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "kilnd: %s\n", std::string(status.message()).c_str());
  return code;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// Everything that a start would refuse and that can be seen without starting.
int CheckConfig(const Config& config) {
  if (auto credentials = Credentials::Load(config.security, config.listen.IsLoopback());
      !credentials.ok()) {
    return Fail(kExitBadConfig, credentials.status());
  }
  if (absl::Status remote = CheckRemoteSettings(config.remote); !remote.ok()) {
    return Fail(kExitBadConfig, remote);
  }
  for (const std::string& warning : ExposureWarnings(config)) {
    std::fprintf(stderr, "kilnd: warning: %s\n", warning.c_str());
  }
  std::fputs(DescribeConfig(config).c_str(), stdout);
  return 0;
}

// Keys of targets that this build lacks are made with the first one's: such compiles are refused.
CompilerBuilds BuildsOf(const std::vector<CompilerTarget>& targets) {
  CompilerBuilds builds{.fallback = targets.front().build, .by_target = {}};
  for (const CompilerTarget& target : targets) {
    builds.by_target.emplace(TargetNumber(target.name), target.build);
  }
  return builds;
}

int PrintVersion() {
  const std::vector<CompilerTarget> targets = CompilerTargets();
  std::printf("kilnd %s\ncompiler build %s\ntoolchain %s\ntargets", KILN_VERSION,
              targets.front().build.c_str(), targets.front().toolchain.c_str());
  for (const CompilerTarget& target : targets) std::printf(" %s", target.name.c_str());
  std::printf("\n");
  for (const CompilerTarget& target : targets) {
    std::printf("build of %s %s\n", target.name.c_str(), target.build.c_str());
  }
  return 0;
}

HttpRoutes MakeRoutes(Metrics& metrics, Broker& broker, WorkerPool& pool, cache::Store& store,
                      cache::RemoteTier* remote, RpcListener& rpc,
                      const std::atomic<bool>& serving) {
  HttpRoutes routes;
  routes["/metrics"].get = [&, remote](const HttpRequest&) {
    BrokerCounts jobs = broker.Counts();
    WorkerCounts workers = pool.Counts();
    GaugeValues gauges{jobs.queued,  jobs.running, jobs.waiters,  workers.starting,
                       workers.idle, workers.busy, store.Usages()};
    gauges.worker_isolation_gaps = workers.isolation_gaps;
    gauges.process = ReadProcessStats();
    gauges.tenants = std::move(jobs.tenants);
    gauges.door = rpc.Counts();
    if (remote != nullptr) gauges.remote = remote->Counts();
    return HttpReply{200, "text/plain; version=0.0.4; charset=utf-8", metrics.Render(gauges)};
  };
  routes["/metrics"].kind = HttpKind::kMetrics;
  routes["/healthz"].kind = HttpKind::kProbe;
  routes["/readyz"].kind = HttpKind::kProbe;
  routes["/healthz"].get = [](const HttpRequest&) { return HttpReply{.body = "ok\n"}; };
  routes["/readyz"].get = [&](const HttpRequest&) {
    WorkerCounts workers = pool.Counts();
    if (!serving) return HttpReply{.code = 503, .body = "not serving\n"};
    if (rpc.Counts().out_of_descriptors) {
      return HttpReply{.code = 503, .body = "no file descriptor is left\n"};
    }
    if (workers.idle + workers.busy == 0) return HttpReply{.code = 503, .body = "no worker\n"};
    return HttpReply{.body = "ready\n"};
  };
  return routes;
}

// For the server as a whole and for its one service.
void SetHealth(HealthService& health, bool serving) {
  health.SetServing("", serving);
  health.SetServing(v1::CompileService::service_full_name(), serving);
}

void PrintReady(const RpcListener& rpc, const HttpServer& http, const Config& config,
                cache::Store& store) {
  int64_t artifacts = 0;
  int64_t kernels = 0;
  for (const cache::Usage& usage : store.Usages()) {
    if (usage.kind == cache::EntryKind::kArtifact) artifacts += usage.entries;
    if (usage.kind == cache::EntryKind::kKernel) kernels += usage.entries;
  }
  std::printf(
      "kilnd ready: grpc %s, http %s, workers %d, cache %s (%lld artifacts, %lld kernels)\n",
      rpc.address().ToString().c_str(), http.address().ToString().c_str(), config.workers,
      config.data_dir.c_str(), static_cast<long long>(artifacts), static_cast<long long>(kernels));
  std::fflush(stdout);
  NotifyServiceManager("READY=1");
}

void LogExposure(const Config& config, const RpcListener& rpc) {
  if (!config.listen.IsLoopback()) {
    Log(LogLevel::kInfo, "listening beyond this machine", {{"address", rpc.address().ToString()}});
  }
  for (const std::string& warning : ExposureWarnings(config)) Log(LogLevel::kWarning, warning);
}

void ReloadCredentials(Credentials& credentials) {
  // What is wrong is logged there.
  if (credentials.Reload().ok()) Log(LogLevel::kInfo, "credentials are up to date");
}

BrokerOptions JobLimits(const Config& config) {
  BrokerOptions options;
  options.job_threads = config.workers + 2;
  options.max_queued_jobs = config.max_queued_jobs;
  options.tenant_max_queued = config.tenant_max_queued;
  options.tenant_max_running = config.tenant_max_running;
  options.tenant_weights = config.tenant_weights;
  options.lease.longest_wait = config.remote.lease_wait;
  return options;
}

// Null where no collector is configured.
// Kernels for CPUs like this one, as a client on it asks for them.
v1::CompileKernelRequest KernelForThisMachine() {
  v1::CompileKernelRequest kernel;
  if (auto device = DescribeCpu("native", 0); device.ok()) *kernel.mutable_device() = *device;
  *kernel.mutable_options() = KeyedOptions({});
  return kernel;
}

std::unique_ptr<SpanSink> StartTracing(const Config& config, Metrics& metrics) {
  if (config.otlp_endpoint.empty()) return nullptr;
  SpanExporterOptions options;
  options.endpoint = config.otlp_endpoint;
  options.sample_ratio = config.trace_sample_ratio;
  options.resource = {.service_version = KILN_VERSION,
                      .host_name = HostName(),
                      .instance_id = absl::StrCat(HostName(), ":", getpid())};
  options.on_exported = [&metrics](int64_t count) { metrics.SpansExported(count); };
  options.on_dropped = [&metrics](absl::string_view reason, int64_t count) {
    metrics.SpansDropped(reason, count);
  };
  std::unique_ptr<SpanSink> sink = StartSpanExporter(std::move(options));
  InstallSpanSink(sink.get());
  return sink;
}

// Null where there is no ptxas, or no worker that may run it.
std::unique_ptr<WorkerPool> StartAssemblers(WorkerPoolOptions options, const std::string& ptxas) {
  if (ptxas.empty()) return nullptr;
  options.command = {"/proc/self/exe", "worker", absl::StrCat("--ptxas=", ptxas)};
  options.limits.task_timeout = std::min(options.limits.task_timeout, kAssemblyLimit);
  options.standby = 0;
  auto pool = std::make_unique<WorkerPool>(std::move(options));
  if (pool->WaitUntilReady(kAssemblerStartLimit)) {
    Log(LogLevel::kInfo, "kernels of GPUs get cubins", {{"ptxas", ptxas}});
    return pool;
  }
  Log(LogLevel::kWarning, "ptxas cannot be used: kernels of GPUs are PTX alone",
      {{"ptxas", ptxas}});
  return nullptr;
}

// From here on everything exists; ends with a signal.
int Serve(const Config& config, const sigset_t& signals) {
  const std::vector<CompilerTarget> targets = CompilerTargets();
  const CompilerBuilds compiler_builds = BuildsOf(targets);
  auto credentials = Credentials::Load(config.security, config.listen.IsLoopback());
  if (!credentials.ok()) return Fail(kExitBadConfig, credentials.status());
  if (absl::Status remote = CheckRemoteSettings(config.remote); !remote.ok()) {
    return Fail(kExitBadConfig, remote);
  }
  auto data_dir = cache::DataDir::Open(config.data_dir);
  if (absl::IsAborted(data_dir.status())) return Fail(kExitInUse, data_dir.status());
  if (!data_dir.ok()) return Fail(kExitBadConfig, data_dir.status());
  auto signing_key = OpenSigningKey(config.security, config.data_dir);
  if (!signing_key.ok()) return Fail(kExitBadConfig, signing_key.status());
  ArtifactSigner signer(signing_key->get());

  Metrics metrics(KILN_VERSION, compiler_builds.fallback);
  for (const CompilerTarget& target : targets) metrics.AddTarget(target.name, target.build);
  absl::StatusOr<Caches> caches = OpenCaches(config, signing_key->get(), metrics);
  if (!caches.ok()) return Fail(kExitFailed, caches.status());

  const std::unique_ptr<SpanSink> spans = StartTracing(config, metrics);
  const absl::Cleanup stop_tracing = [] { InstallSpanSink(nullptr); };

  const absl::StatusOr<std::string> ptxas = FindPtxas(config.ptxas);
  if (!ptxas.ok()) return Fail(kExitBadConfig, ptxas.status());

  WorkerPoolOptions pool_options;
  pool_options.workers = config.workers;
  pool_options.limits = {config.worker_memory_bytes, config.worker_timeout};
  pool_options.standby = config.worker_standby;
  pool_options.first_kind = KernelForThisMachine();
  pool_options.require_isolation = config.sandbox_required;
  pool_options.on_exit = [&metrics](ExitReason reason) { metrics.WorkerExited(reason); };
  // Destroyed in the reverse order: calls, jobs, then the workers that call both back.
  std::atomic<bool> serving = false;
  GoFirst();  // the threads that serve calls; the store's own are there already
  Admission admission({.max_request_bytes = config.max_request_bytes}, &metrics);
  Executor executor(kIoThreads, kMaxQueuedCalls);
  Executor background(kBackgroundThreads, kMaxQueuedCalls, kBackgroundNiceness);
  Executor network(kNetworkThreads, kMaxQueuedLookups);
  Executor upkeep(kUpkeepThreads, kMaxQueuedCalls, kBackgroundNiceness);
  std::unique_ptr<KernelCompiler> kernels;
  const std::unique_ptr<WorkerPool> assemblers = StartAssemblers(pool_options, *ptxas);
  WorkerPool pool(pool_options);
  kernels = std::make_unique<KernelCompiler>(
      &pool, caches->all.get(), caches->memory.get(),
      KernelAssembler{assemblers.get(), [&metrics](bool ok) { metrics.KernelAssembled(ok); }});
  ActivityLog activity;
  for (const auto& [tenant, weight] : config.tenant_weights) metrics.NameTenants({tenant});
  Broker broker(JobLimits(config),
                {pool, *kernels, *caches->all, *caches->verified_disk, metrics, compiler_builds,
                 &KernelKeyOf, &activity},
                caches->unmetered.get(),
                caches->remote == nullptr ? nullptr : &caches->remote->leases());

  ActivitySources sources{
      activity, broker, pool, *caches->all, KILN_VERSION, compiler_builds.fallback, [&serving] {
        return !serving;
      }};
  CompileDetails details(&broker, caches->unmetered.get(), &activity, compiler_builds);

  auto rpc = RpcListener::Listen(config);
  if (!rpc.ok()) return Fail(kExitInUse, rpc.status());
  HttpRoutes routes =
      MakeRoutes(metrics, broker, pool, *caches->all, caches->remote.get(), **rpc, serving);
  routes = RequireToken(WithPage(std::move(routes), &sources, &details),
                        config.security.metrics_token_sha256);
  auto http =
      HttpServer::Start(config.metrics_listen, std::move(routes), {.hosts = config.metrics_hosts});
  if (!http.ok()) return Fail(kExitInUse, http.status());
  ServiceContext context{*caches->all,
                         *caches->local,
                         caches->shared.get(),
                         *caches->verified_disk,
                         broker,
                         pool,
                         executor,
                         background,
                         network,
                         upkeep,
                         admission,
                         metrics,
                         (*credentials)->authenticator(),
                         signer,
                         KILN_VERSION,
                         compiler_builds,
                         targets.front().toolchain,
                         config.workers,
                         [&serving] { return !serving; },
                         &CheckGraphSize,
                         activity,
                         [&sources](const v1::GetActivityRequest& request, v1::Activity& out) {
                           return ReportActivity(sources, request, out);
                         },
                         *caches->disk,
                         *caches->memory};
  serving = true;
  HealthService health;
  SetHealth(health, true);
  if (absl::Status started = (*rpc)->Start(**credentials, &context, health); !started.ok()) {
    return Fail(kExitInUse, started);
  }
  const absl::Cleanup stop_calls = [&rpc] { (*rpc)->Stop(); };
  if (!pool.WaitUntilReady(kWorkerStartLimit)) {
    return Fail(kExitFailed, absl::InternalError("no compile worker starts; see the log above"));
  }
  LogExposure(config, **rpc);
  PrintReady(**rpc, **http, config, *caches->disk);

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) ReloadCredentials(**credentials);
  serving = false;
  NotifyServiceManager("STOPPING=1");
  SetHealth(health, false);
  const timespec at_once = {};
  Drain((*rpc)->grpc_server(), broker, admission, [&] { (*rpc)->StopAccepting(); },
        [&] {
          const int again = sigtimedwait(&signals, nullptr, &at_once);
          return again > 0 && again != SIGHUP;
        });
  return 0;
}

// Many small blocks leave holes, among which others stay. glibc has eight heaps a processor, and
// each keeps the pages that something lives in. It also keeps free what has been at the end of a
// heap, up to twice the largest block that was ever freed, unless told how much. Graphs have blocks
// of their own (proto/base/arena_message.h).
void LimitHeaps() {
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  mallopt(M_ARENA_MAX, std::max(2, processors / 4));
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
}

int Run(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "worker") {
    return RunWorker(absl::MakeConstSpan(argv + 2, static_cast<size_t>(argc - 2)));
  }
  for (const std::string& argument : arguments) {
    if (argument == "--version") return PrintVersion();
    if (argument == "--help" || argument == "-h") {
      std::fputs(ConfigHelp().c_str(), stdout);
      return 0;
    }
  }
  const auto check = std::remove(arguments.begin(), arguments.end(), "--check-config");
  const bool only_check = check != arguments.end();
  arguments.erase(check, arguments.end());
  absl::StatusOr<Config> config = LoadConfig(arguments, ProcessEnvironment());
  if (!config.ok()) return Fail(kExitBadConfig, config.status());
  if (only_check) return CheckConfig(*config);
  SetLogLevel(LogLevelFromEnvironment(LogLevel::kInfo));
  SetLogFormat(config->log_json ? LogFormat::kJson : LogFormat::kText);
  RaiseDescriptorLimit();
  TakeGrpcLog();
  SkipDeadlockChecks();
  LimitHeaps();
  // Before any thread starts, so that all of them leave these to sigwait.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  LogThread log;
  return Serve(*config, signals);
}

}  // namespace
}  // namespace kiln::server

int main(int argc, char** argv) {
  return kiln::server::Run(argc, argv);
}
