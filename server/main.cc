// kilnd: the composition root, the only place that makes concrete parts and joins them.
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/data_dir.h"
#include "cache/former_caches.h"
#include "compiler/compiler.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/compiler_builds.h"
#include "proto/base/device_cpu.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/own_server.h"
#include "proto/base/scheduling.h"
#include "proto/base/status_macros.h"
#include "proto/base/target_name.h"
#include "server/cache_stack.h"
#include "server/calls/executor.h"
#include "server/config.h"
#include "server/drain.h"
#include "server/exposure.h"
#include "server/jobs/admission.h"
#include "server/jobs/assemble_ahead.h"
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
#include "server/security/local_token.h"
#include "server/service.h"
#include "server/web/activity_report.h"
#include "server/web/compile_details.h"
#include "server/web/http.h"
#include "server/web/http_guard.h"
#include "server/web/pages.h"
#include "server/workers/huge_code.h"
#include "server/workers/ptxas.h"
#include "server/workers/worker.h"
#include "server/workers/worker_compiler.h"
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
constexpr int64_t kLeastMemoryForHugeCode = int64_t{1} << 30;  // of a worker
constexpr absl::Duration kAssemblyLimit = absl::Seconds(30);
constexpr absl::Duration kAssemblerStartLimit = absl::Seconds(10);
constexpr absl::Duration kIdleLook = absl::Seconds(1);
constexpr absl::Duration kPredecessorLimit = absl::Seconds(10);
constexpr absl::Duration kWorkerStartLimit = absl::Seconds(30);

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
  // One that is not named is made at the first start.
  if (!config.security.signing_key.empty()) {
    auto key = OpenSigningKey(config.security, config.data_dir);
    if (!key.ok()) return Fail(kExitBadConfig, key.status());
  }
  for (const std::string& warning : ExposureWarnings(config)) {
    std::fprintf(stderr, "kilnd: warning: %s\n", warning.c_str());
  }
  std::fputs(DescribeConfig(config).c_str(), stdout);
  return 0;
}

// A signing key for several servers, in a file that was not there before.
int MakeKey(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) {
    return Fail(kExitBadConfig,
                absl::AlreadyExistsError(
                    absl::StrCat("--make-key: ", path, " is there already, and stays as it is")));
  }
  auto key = SigningKey::LoadOrCreate(path);
  if (!key.ok()) return Fail(kExitBadConfig, key.status());
  std::printf("%s\n", FormatPublicKey((*key)->public_key()).c_str());
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
                      cache::RemoteTier* remote, RpcListener& rpc, const Credentials& credentials,
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
    if (const std::optional<absl::Time> expiry = credentials.certificate_expiry()) {
      gauges.certificate_left = *expiry - absl::Now();
    }
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

// `http` may be null.
void PrintReady(const RpcListener& rpc, const HttpServer* http, const Config& config,
                cache::Store& store) {
  int64_t artifacts = 0;
  int64_t kernels = 0;
  for (const cache::Usage& usage : store.Usages()) {
    if (usage.kind == cache::EntryKind::kArtifact) artifacts += usage.entries;
    if (usage.kind == cache::EntryKind::kKernel) kernels += usage.entries;
  }
  std::printf(
      "kilnd ready: grpc %s, http %s, workers %d, cache %s (%lld artifacts, %lld kernels)\n",
      config.listen.IsNone() ? absl::StrCat("unix:", rpc.socket()).c_str()
                             : rpc.address().ToString().c_str(),
      http == nullptr ? "none" : http->address().ToString().c_str(), config.workers,
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

// What was asked for cannot be had now, or never.
int ListenExit(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? kExitInUse : kExitBadConfig;
}

// Null where callers over TCP are known otherwise, or there are none.
absl::StatusOr<std::unique_ptr<LocalToken>> AdmitThisUser(const Config& config,
                                                          const RpcListener& rpc,
                                                          absl::string_view public_key,
                                                          Credentials& credentials) {
  const bool wanted = UsesLocalToken(config.security, config.listen.IsLoopback());
  if (!wanted || config.listen.IsNone()) return nullptr;
  KILN_ASSIGN_OR_RETURN(auto token, LocalToken::Make(rpc.address().port, public_key));
  credentials.SetLocalToken(token->sha256());
  Log(LogLevel::kInfo, "callers show this user's token (--anonymous-role lets others in)",
      {{"file", token->path()}});
  return token;
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

// Workers that run one program of NVIDIA's, as `flag` names it, and nothing else. Null where there
// is none.
std::unique_ptr<WorkerPool> StartProgram(WorkerPoolOptions options, absl::string_view flag,
                                         const std::string& program) {
  if (program.empty()) return nullptr;
  options.command = {"/proc/self/exe", "worker", absl::StrCat("--", flag, "=", program)};
  options.limits.task_timeout = std::min(options.limits.task_timeout, kAssemblyLimit);
  options.first_kind.Clear();
  options.standby = std::min(options.standby, options.workers);  // each has memory of its own
  return std::make_unique<WorkerPool>(std::move(options));
}

// Without workers where they do not become ready: waits, and says which it is.
void KeepIfReady(std::unique_ptr<WorkerPool>& pool, absl::string_view flag,
                 const std::string& program) {
  if (pool == nullptr) return;
  const bool ready = pool->WaitUntilReady(kAssemblerStartLimit);
  Log(ready ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat(flag,
                   ready ? " is there for kernels of GPUs" : " cannot be used for kernels of GPUs"),
      {{"program", program}});
  if (!ready) pool.reset();
}

// Of a build's kernels; null where there is nothing to make, or nothing that makes it. A few at a
// time, so that most assemblers wait for jobs.
std::unique_ptr<AssembleAhead> MakeAssembleAhead(const Config& config, WorkerPool* assemblers,
                                                 cache::Store& store, Metrics& metrics) {
  if (assemblers == nullptr || !config.assemble_ahead) return nullptr;
  std::vector<AssembleAhead::Kernel> kernels;
  for (const KernelOfBuild& kernel : MakeWorkerCompiler().kernels_of_build()) {
    kernels.push_back({kernel.key, kernel.arch, kernel.object});
  }
  if (kernels.empty()) return nullptr;
  return std::make_unique<AssembleAhead>(
      std::move(kernels), assemblers, &store,
      AssembleAhead::Options{.at_a_time = std::max(1, config.workers / 4),
                             .on_assembled = [&metrics](bool ok) { metrics.KernelAssembled(ok); }});
}

// Until a signal, or until nobody has called for --idle-timeout. Then programs that come find
// nobody at the socket, and start a server of their own.
void WaitForEnd(const Config& config, const sigset_t& signals, RpcListener& rpc,
                Credentials& credentials) {
  const bool endless = config.idle_timeout == absl::InfiniteDuration();
  const timespec look = absl::ToTimespec(std::min(config.idle_timeout / 4, kIdleLook));
  while (true) {
    const int signal =
        endless ? sigwaitinfo(&signals, nullptr) : sigtimedwait(&signals, nullptr, &look);
    if (signal == SIGHUP) {
      ReloadCredentials(credentials);
    } else if (signal > 0) {
      return;
    } else if (!endless && rpc.IdleFor() >= config.idle_timeout) {
      Log(LogLevel::kInfo, "nobody has called for a while");
      return rpc.StopAccepting();
    }
  }
}

// A server that ends for want of calls may just be doing so while the next one starts.
absl::StatusOr<std::unique_ptr<cache::DataDir>> OpenDataDir(const Config& config) {
  const bool replaces = config.idle_timeout != absl::InfiniteDuration();
  const absl::Time deadline = absl::Now() + (replaces ? kPredecessorLimit : absl::ZeroDuration());
  while (true) {
    auto data_dir = cache::DataDir::Open(config.data_dir);
    if (!absl::IsAborted(data_dir.status()) || absl::Now() >= deadline) return data_dir;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

void ForgetFormerBuilds(const Config& config) {
  const cache::DeletedCaches deleted = cache::DeleteFormerCaches(config.data_dir, absl::Now());
  if (deleted.folders == 0) return;
  Log(LogLevel::kInfo, "deleted the caches of former builds",
      {{"folders", absl::StrCat(deleted.folders)}, {"bytes", absl::StrCat(deleted.size_bytes)}});
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
  auto data_dir = OpenDataDir(config);
  if (absl::IsAborted(data_dir.status())) return Fail(kExitInUse, data_dir.status());
  if (!data_dir.ok()) return Fail(kExitBadConfig, data_dir.status());
  auto signing_key = OpenSigningKey(config.security, config.data_dir);
  if (!signing_key.ok()) return Fail(kExitBadConfig, signing_key.status());
  ArtifactSigner signer(signing_key->get());

  Metrics metrics(KILN_VERSION, compiler_builds.fallback);
  for (const CompilerTarget& target : targets) metrics.AddTarget(target.name, target.build);
  auto caches = CacheStack::Open(config, signing_key->get(), metrics);
  if (!caches.ok()) return Fail(kExitFailed, caches.status());
  CacheStack& stack = **caches;

  const std::unique_ptr<SpanSink> spans = StartTracing(config, metrics);
  const absl::Cleanup stop_tracing = [] { InstallSpanSink(nullptr); };

  const absl::StatusOr<std::string> ptxas = FindPtxas(config.ptxas);
  if (!ptxas.ok()) return Fail(kExitBadConfig, ptxas.status());
  const absl::StatusOr<std::string> nvdisasm =
      FindNvdisasm(ptxas->empty() ? "none" : config.nvdisasm, *ptxas);
  if (!nvdisasm.ok()) return Fail(kExitBadConfig, nvdisasm.status());

  WorkerPoolOptions pool_options;
  pool_options.workers = config.workers;
  // It takes a worker 0.1 s to begin with: not for whoever waits for a server of his own, which
  // ends when nobody calls it any more.
  if (config.idle_timeout == absl::InfiniteDuration() &&
      config.worker_memory_bytes >= kLeastMemoryForHugeCode &&
      HasRoomForHugeCode(config.workers, MemoryForProcesses())) {
    pool_options.command.emplace_back(kHugeCodeFlag);
  }
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
  WorkerPoolOptions disassembler_options = pool_options;
  disassembler_options.workers = 1;  // only people wait for it
  std::unique_ptr<WorkerPool> assemblers = StartProgram(pool_options, "ptxas", *ptxas);
  std::unique_ptr<WorkerPool> disassemblers =
      StartProgram(std::move(disassembler_options), "nvdisasm", *nvdisasm);
  KeepIfReady(assemblers, "ptxas", *ptxas);
  if (assemblers == nullptr) disassemblers.reset();  // there are no cubins to show
  KeepIfReady(disassemblers, "nvdisasm", *nvdisasm);
  WorkerPool pool(pool_options);
  kernels = std::make_unique<KernelCompiler>(
      &pool, &stack.all(), &stack.memory(),
      KernelAssembler{assemblers.get(), [&metrics](bool ok) { metrics.KernelAssembled(ok); }});
  const std::unique_ptr<AssembleAhead> ahead =
      MakeAssembleAhead(config, assemblers.get(), stack.unmetered(), metrics);
  ActivityLog activity;
  RunReports run_reports(&activity);
  Choices choices(&stack.all());
  for (const auto& [tenant, weight] : config.tenant_weights) metrics.NameTenants({tenant});
  Broker broker(JobLimits(config),
                {pool, *kernels, stack.all(), stack.verified_disk(), metrics, compiler_builds,
                 &KernelKeyOf, &activity, &choices, disassemblers.get()},
                &stack.unmetered(),
                stack.remote() == nullptr ? nullptr : &stack.remote()->leases());

  ActivitySources sources{
      activity, broker, pool, stack.all(), KILN_VERSION, compiler_builds.fallback, [&serving] {
        return !serving;
      }};
  CompileDetails details(&broker, &stack.unmetered(), &activity, &run_reports, compiler_builds);

  auto rpc = RpcListener::Listen(config);
  if (!rpc.ok()) return Fail(ListenExit(rpc.status()), rpc.status());
  auto token = AdmitThisUser(config, **rpc, signer.public_key(), **credentials);
  if (!token.ok()) return Fail(kExitBadConfig, token.status());
  HttpRoutes routes =
      MakeRoutes(metrics, broker, pool, stack.all(), stack.remote(), **rpc, **credentials, serving);
  routes = RequireToken(WithPage(std::move(routes), &sources, &details),
                        config.security.metrics_token_sha256);
  std::unique_ptr<HttpServer> http;
  if (!config.metrics_listen.IsNone()) {
    auto started = HttpServer::Start(config.metrics_listen, std::move(routes),
                                     {.hosts = config.metrics_hosts});
    if (!started.ok()) return Fail(kExitInUse, started.status());
    http = *std::move(started);
  }
  ServiceContext context{
      .store = stack.all(),
      .local = stack.local(),
      .shared = stack.shared(),
      .durable = stack.verified_disk(),
      .broker = broker,
      .workers = pool,
      .executor = executor,
      .background = background,
      .network = network,
      .upkeep = upkeep,
      .admission = admission,
      .metrics = metrics,
      .authenticator = (*credentials)->authenticator(),
      .signer = signer,
      .version = KILN_VERSION,
      .compiler_builds = compiler_builds,
      .toolchain = targets.front().toolchain,
      .worker_count = config.workers,
      .draining = [&serving] { return !serving; },
      .check_graph = &CheckGraphSize,
      .activity = activity,
      .run_reports = run_reports,
      .choices = choices,
      .report_activity = [&sources](
                             const v1::GetActivityRequest& request,
                             v1::Activity& out) { return ReportActivity(sources, request, out); },
      .pins = stack.disk(),
      .memory = stack.memory(),
  };
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
  LinkSocket(SocketLink(config.data_dir), (*rpc)->socket());
  PrintReady(**rpc, http.get(), config, stack.disk());
  if (ahead != nullptr) ahead->Start();
  // A queue that has just begun has room; the next start would do it otherwise.
  upkeep.Run([&config] { ForgetFormerBuilds(config); }).IgnoreError();

  WaitForEnd(config, signals, **rpc, **credentials);
  if (*token != nullptr) (*token)->Remove();
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

bool TakeSwitch(std::vector<std::string>& arguments, absl::string_view name) {
  return std::erase(arguments, name) > 0;
}

int Run(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "worker") {
    return RunWorker(absl::MakeConstSpan(argv + 2, static_cast<size_t>(argc - 2)));
  }
  // Before its first use. exit() leaves its tables: a thread of gRPC may be setting up a
  // connection.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  if (arguments.size() == 2 && arguments[0] == "--make-key") return MakeKey(arguments[1]);
  for (const std::string& argument : arguments) {
    if (argument == "--version") return PrintVersion();
    if (argument == "--help" || argument == "-h") {
      std::fputs(ConfigHelp().c_str(), stdout);
      return 0;
    }
  }
  const bool only_check = TakeSwitch(arguments, "--check-config");
  const bool background = TakeSwitch(arguments, "--background");
  absl::StatusOr<Config> config = LoadConfig(arguments, ProcessEnvironment());
  if (!config.ok()) return Fail(kExitBadConfig, config.status());
  if (only_check) return CheckConfig(*config);
  if (background) {
    // Nobody's child: who started it may end, or wait for children of its own.
    const pid_t child = fork();
    if (child < 0) return Fail(kExitFailed, absl::ErrnoToStatus(errno, "cannot fork"));
    if (child > 0) return 0;
  }
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
