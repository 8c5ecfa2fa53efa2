#include "server/service.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/arena_message.h"
#include "proto/base/status_macros.h"
#include "server/calls/cache_calls.h"
#include "server/calls/call.h"
#include "server/calls/compile_call.h"
#include "server/calls/fetch_call.h"
#include "server/calls/interpret_call.h"
#include "server/calls/request_limits.h"
#include "server/calls/transfer_calls.h"
#include "server/jobs/explain_miss.h"
#include "server/rpc/messages.h"

namespace kiln::server {
namespace {

constexpr int64_t kMaxShortBytes = int64_t{64} << 10;
constexpr int kDefaultListLimit = 1000;
constexpr int kMaxListLimit = 20000;  // stays under gRPC's default limit of 4 MiB for an answer

absl::Status ListCacheEntries(cache::Store& store, const v1::ListCacheRequest& request,
                              v1::ListCacheResponse& response) {
  KILN_ASSIGN_OR_RETURN(auto kinds, ParseKinds(request.kind()));
  if (request.limit() < 0) return absl::InvalidArgumentError("limit is negative");
  size_t limit =
      request.limit() == 0 ? kDefaultListLimit : std::min(request.limit(), kMaxListLimit);
  for (const cache::EntryInfo& info : cache::MostRecent(store, kinds, limit)) {
    v1::CacheEntry& entry = *response.add_entries();
    entry.set_kind(std::string(cache::EntryKindName(info.key.kind)));
    entry.set_key(info.key.digest.ToHex());
    entry.set_size_bytes(info.size_bytes);
    entry.set_last_used_unix_ms(info.last_used_unix_ms);
    entry.set_pinned(info.pinned);
  }
  return absl::OkStatus();
}

v1::ServerInfo DescribeServer(const ServiceContext& service) {
  v1::ServerInfo info;
  info.set_version(service.version);
  info.set_compiler_build(service.compiler_builds.fallback);
  info.set_toolchain(service.toolchain);
  info.set_public_key(service.signer.public_key());
  for (const auto& [target, build] : service.compiler_builds.by_target) {
    info.add_targets(static_cast<v1::Target>(target));
    v1::TargetBuild& out = *info.add_target_builds();
    out.set_target(static_cast<v1::Target>(target));
    out.set_compiler_build(build);
  }
  for (const cache::Usage& usage : service.store.Usages()) {
    v1::CacheInfo& out = *info.add_caches();
    out.set_kind(std::string(cache::EntryKindName(usage.kind)));
    out.set_tier(std::string(usage.tier));
    out.set_entries(usage.entries);
    out.set_size_bytes(usage.size_bytes);
  }
  BrokerCounts counts = service.broker.Counts();
  info.set_jobs_queued(counts.queued);
  info.set_jobs_running(counts.running);
  info.set_workers(service.worker_count);
  info.set_draining(service.draining());
  return info;
}

absl::Status ClearKinds(cache::Store& store, const v1::ClearCacheRequest& request,
                        v1::ClearCacheResponse& response) {
  KILN_ASSIGN_OR_RETURN(auto kinds, ParseKinds(request.kind()));
  for (cache::EntryKind kind : kinds) {
    KILN_ASSIGN_OR_RETURN(int64_t removed, cache::Clear(store, kind));
    response.set_removed(response.removed() + removed);
  }
  return absl::OkStatus();
}

absl::Status ExplainMissOf(const ServiceContext& service, const v1::ExplainMissRequest& request,
                           v1::ExplainMissResponse& response) {
  KILN_RETURN_IF_ERROR(CheckRequestLimits(request.device(), request.options()));
  KILN_RETURN_IF_ERROR(service.check_graph(request.graph()));
  return ExplainMiss(service.durable, service.compiler_builds.For(request.device().target()),
                     request, response);
}

using Stopped = std::function<bool()>;

// One message in, one out: `work` runs on an executor, where the caller may call the method.
// `stopped` says whether the client has gone.
template <typename Request, typename Response>
class UnaryCall final : public Reactor {
 public:
  using Work = std::function<absl::Status(const Request& request, Response& response,
                                          const Stopped& stopped)>;

  UnaryCall(absl::string_view method, const ServiceContext& service, Executor& executor,
            const Work& work, grpc::ServerContextBase& context, grpc::ByteBuffer& request)
      : call_(method, context, service.metrics),
        service_(service),
        executor_(executor),
        work_(work),
        serialized_(request) {}

  void Start() override {
    absl::Status started = Admit();
    if (started.ok()) started = executor_.Run([this] { Run(); });
    if (!started.ok()) Finish(call_.End(started));
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override { delete this; }

 private:
  absl::Status Admit() {
    KILN_RETURN_IF_ERROR(call_.Admit(service_.authenticator));
    KILN_ASSIGN_OR_RETURN(
        place_,
        service_.admission.Hold(static_cast<int64_t>(serialized_.Length()), call_.caller().tenant));
    return absl::OkStatus();
  }

  void Run() {
    const auto request = MakeArenaMessage<Request>();
    Response response;
    absl::Status status = ParseMessage(serialized_, *request);
    if (status.ok()) status = work_(*request, response, [this] { return cancelled_.load(); });
    if (!status.ok()) return Finish(call_.End(status));
    StartWriteAndFinish(SerializeMessage(response), call_.End(status));
  }

  Call call_;
  const ServiceContext& service_;
  Executor& executor_;
  const Work& work_;
  Admission::Place place_;  // the request's bytes
  grpc::ByteBuffer serialized_;
  std::atomic<bool> cancelled_ = false;
};

class CompileServiceMethods {
 public:
  explicit CompileServiceMethods(const ServiceContext& service, Methods& methods)
      : service_(service), methods_(methods) {}

  void Add(absl::string_view name, Method method) {
    methods_[absl::StrCat("/", v1::CompileService::service_full_name(), "/", name)] =
        std::move(method);
  }

  // `name` must live as long as the process.
  template <typename Request, typename Response, typename Work>
  void AddUnary(absl::string_view name, Executor& executor, Work short_work) {
    AddStoppable<Request, Response>(
        name, executor,
        [work = std::move(short_work)](const Request& request, Response& response, const Stopped&) {
          return work(request, response);
        });
  }
  template <typename Request, typename Response, typename Work>
  void AddStoppable(absl::string_view name, Executor& executor, Work work) {
    using Unary = UnaryCall<Request, Response>;
    // What is answered at once has nothing long to ask.
    const int64_t max_bytes = &executor == &service_.executor ? kMaxShortBytes : kMaxMessageBytes;
    Add(name, {.max_request_bytes = max_bytes,
               .make = [name, &service = service_, &executor,
                        work = typename Unary::Work(std::move(work))](
                           grpc::ServerContextBase& context, grpc::ByteBuffer& request) {
                 return new Unary(name, service, executor, work, context, request);
               }});
  }

 private:
  const ServiceContext& service_;
  Methods& methods_;
};

}  // namespace

void AddCompileService(const ServiceContext* context, Methods& all) {
  const ServiceContext& service = *context;
  Executor& quick = service.executor;
  Executor& upkeep = service.upkeep;
  CompileServiceMethods methods(service, all);
  methods.Add("Fetch", FetchMethod(service));
  methods.Add("Compile", CompileMethod(service));
  methods.Add("Interpret", InterpretMethod(service));
  methods.Add("ExportCache", ExportMethod(service));
  methods.Add("ImportCache", ImportMethod(service));
  methods.AddUnary<v1::GetServerInfoRequest, v1::ServerInfo>(
      "GetServerInfo", quick, [&service](const auto&, v1::ServerInfo& info) {
        info = DescribeServer(service);
        return absl::OkStatus();
      });
  methods.AddUnary<v1::GetActivityRequest, v1::Activity>("GetActivity", quick,
                                                         service.report_activity);
  methods.AddUnary<v1::ClearRefusalsRequest, v1::ClearRefusalsResponse>(
      "ClearRefusals", quick, [&service](const auto&, auto& response) {
        response.set_cleared(service.broker.ClearRefusals());
        return absl::OkStatus();
      });
  methods.AddUnary<v1::ReportRunRequest, v1::ReportRunResponse>(
      "ReportRun", quick,
      [&service](const auto& request, auto&) { return service.run_reports.Add(request); });
  methods.AddUnary<v1::ReportChoicesRequest, v1::ReportChoicesResponse>(
      "ReportChoices", service.network,
      [&service](const auto& request, auto&) { return service.choices.Take(request); });
  methods.AddUnary<v1::ListCacheRequest, v1::ListCacheResponse>(
      "ListCache", upkeep, [&service](const auto& request, auto& response) {
        return ListCacheEntries(service.store, request, response);
      });
  methods.AddStoppable<v1::VerifyCacheRequest, v1::VerifyCacheResponse>(
      "VerifyCache", upkeep, [&service](const auto&, auto& response, const Stopped& stopped) {
        const cache::VerifyResult result = cache::VerifyAll(service.durable, stopped);
        response.set_checked(result.checked);
        response.set_corrupt(result.corrupt);
        return absl::OkStatus();
      });
  methods.AddUnary<v1::ClearCacheRequest, v1::ClearCacheResponse>(
      "ClearCache", upkeep, [&service](const auto& request, auto& response) {
        return ClearKinds(service.store, request, response);
      });
  methods.AddUnary<v1::PinCacheRequest, v1::PinCacheResponse>(
      "PinCache", upkeep, [&service](const auto& request, auto& response) {
        return PinEntries(service.pins, request, response);
      });
  methods.AddUnary<v1::RemoveCacheRequest, v1::RemoveCacheResponse>(
      "RemoveCache", upkeep, [&service](const auto& request, auto& response) {
        return RemoveEntries(service.store, request, response);
      });
  methods.AddUnary<v1::ExplainMissRequest, v1::ExplainMissResponse>(
      "ExplainMiss", upkeep, [&service](const auto& request, auto& response) {
        return ExplainMissOf(service, request, response);
      });
}

}  // namespace kiln::server
