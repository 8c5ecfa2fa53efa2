#include "server/service.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/status_macros.h"
#include "server/calls/cache_calls.h"
#include "server/calls/call.h"
#include "server/calls/compile_call.h"
#include "server/calls/fetch_call.h"
#include "server/calls/interpret_call.h"
#include "server/calls/request_limits.h"
#include "server/calls/transfer_calls.h"
#include "server/jobs/explain_miss.h"

namespace kiln::server {
namespace {

constexpr int kDefaultListLimit = 1000;
constexpr int kMaxListLimit = 20000;  // stays under gRPC's default limit of 4 MiB for an answer

absl::Status ListCacheEntries(cache::Store& store, const v1::ListCacheRequest& request,
                              v1::ListCacheResponse& response) {
  KILN_ASSIGN_OR_RETURN(auto kinds, ParseKinds(request.kind()));
  if (request.limit() < 0) return absl::InvalidArgumentError("limit is negative");
  size_t limit =
      request.limit() == 0 ? kDefaultListLimit : std::min(request.limit(), kMaxListLimit);
  std::vector<cache::EntryInfo> entries;
  store.ForEach([&](const cache::EntryInfo& info) {
    if (std::find(kinds.begin(), kinds.end(), info.key.kind) != kinds.end()) {
      entries.push_back(info);
    }
  });
  // Most recently used first.
  std::reverse(entries.begin(), entries.end());
  if (entries.size() > limit) entries.resize(limit);
  for (const cache::EntryInfo& info : entries) {
    v1::CacheEntry& entry = *response.add_entries();
    entry.set_kind(std::string(cache::EntryKindName(info.key.kind)));
    entry.set_key(info.key.digest.ToHex());
    entry.set_size_bytes(info.size_bytes);
    entry.set_last_used_unix_ms(info.last_used_unix_ms);
    entry.set_pinned(info.pinned);
  }
  return absl::OkStatus();
}

// Fetch and Compile take and give messages as they travel.
using Service = v1::CompileService::WithRawCallbackMethod_Fetch<
    v1::CompileService::WithRawCallbackMethod_Compile<v1::CompileService::CallbackService>>;

class CompileServiceImpl final : public Service {
 public:
  explicit CompileServiceImpl(const ServiceContext* context) : service_(*context) {}

  using Service::Fetch;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override {
    return StartFetch(service_, context, request);
  }
  using Service::Compile;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Compile(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override {
    return StartCompile(service_, context, request);
  }
  grpc::ServerWriteReactor<v1::InterpretEvent>* Interpret(
      grpc::CallbackServerContext* context, const v1::InterpretRequest* request) override {
    return StartInterpret(service_, context, request);
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::ServerInfo* info) override {
    return Answer("GetServerInfo", context, [this, info] {
      info->set_version(service_.version);
      info->set_compiler_build(service_.compiler_build);
      info->set_toolchain(service_.toolchain);
      info->set_public_key(service_.signer.public_key());
      info->add_targets(v1::TARGET_CPP);
      for (const cache::Usage& usage : service_.store.Usages()) {
        v1::CacheInfo& out = *info->add_caches();
        out.set_kind(std::string(cache::EntryKindName(usage.kind)));
        out.set_tier(std::string(usage.tier));
        out.set_entries(usage.entries);
        out.set_size_bytes(usage.size_bytes);
      }
      BrokerCounts counts = service_.broker.Counts();
      info->set_jobs_queued(counts.queued);
      info->set_jobs_running(counts.running);
      info->set_workers(service_.worker_count);
      info->set_draining(service_.draining());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ListCache(grpc::CallbackServerContext* context,
                                      const v1::ListCacheRequest* request,
                                      v1::ListCacheResponse* response) override {
    return Answer("ListCache", context, [this, request, response] {
      return ListCacheEntries(service_.store, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* GetActivity(grpc::CallbackServerContext* context,
                                        const v1::GetActivityRequest* request,
                                        v1::Activity* activity) override {
    return Answer("GetActivity", context, [this, request, activity] {
      return service_.report_activity(*request, *activity);
    });
  }

  grpc::ServerUnaryReactor* VerifyCache(grpc::CallbackServerContext* context,
                                        const v1::VerifyCacheRequest*,
                                        v1::VerifyCacheResponse* response) override {
    return Answer("VerifyCache", context, [this, response] {
      cache::VerifyResult result = cache::VerifyAll(service_.durable);
      response->set_checked(result.checked);
      response->set_corrupt(result.corrupt);
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ExplainMiss(grpc::CallbackServerContext* context,
                                        const v1::ExplainMissRequest* request,
                                        v1::ExplainMissResponse* response) override {
    return Answer("ExplainMiss", context, [this, request, response]() -> absl::Status {
      KILN_RETURN_IF_ERROR(CheckRequestLimits(request->device(), request->options()));
      KILN_RETURN_IF_ERROR(service_.check_graph(request->graph()));
      return server::ExplainMiss(service_.durable, service_.compiler_build, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* PinCache(grpc::CallbackServerContext* context,
                                     const v1::PinCacheRequest* request,
                                     v1::PinCacheResponse* response) override {
    return Answer("PinCache", context, [this, request, response] {
      return PinEntries(service_.pins, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* RemoveCache(grpc::CallbackServerContext* context,
                                        const v1::RemoveCacheRequest* request,
                                        v1::RemoveCacheResponse* response) override {
    return Answer("RemoveCache", context, [this, request, response] {
      return RemoveEntries(service_.store, *request, *response);
    });
  }

  grpc::ServerWriteReactor<v1::CacheRecord>* ExportCache(
      grpc::CallbackServerContext* context, const v1::ExportCacheRequest* request) override {
    return StartExport(service_, context, request);
  }

  grpc::ServerReadReactor<v1::CacheRecord>* ImportCache(
      grpc::CallbackServerContext* context, v1::ImportCacheResponse* response) override {
    return StartImport(service_, context, response);
  }

  grpc::ServerUnaryReactor* ClearCache(grpc::CallbackServerContext* context,
                                       const v1::ClearCacheRequest* request,
                                       v1::ClearCacheResponse* response) override {
    return Answer("ClearCache", context, [this, request, response]() -> absl::Status {
      KILN_ASSIGN_OR_RETURN(auto kinds, ParseKinds(request->kind()));
      for (cache::EntryKind kind : kinds) {
        KILN_ASSIGN_OR_RETURN(int64_t removed, cache::Clear(service_.store, kind));
        response->set_removed(response->removed() + removed);
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ClearRefusals(grpc::CallbackServerContext* context,
                                          const v1::ClearRefusalsRequest*,
                                          v1::ClearRefusalsResponse* response) override {
    return Answer("ClearRefusals", context, [this, response] {
      response->set_cleared(service_.broker.ClearRefusals());
      return absl::OkStatus();
    });
  }

 private:
  // Runs `work` on an executor, where the caller may, and finishes the call with its status.
  template <typename F>
  grpc::ServerUnaryReactor* Answer(absl::string_view method, grpc::CallbackServerContext* context,
                                   F work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto call = std::make_shared<Call>(method, context, service_.metrics);
    absl::Status started = call->Admit(service_.authenticator);
    if (started.ok()) {
      started = ExecutorOf(method).Run(
          [call, reactor, work = std::move(work)] { reactor->Finish(call->End(work())); });
    }
    if (!started.ok()) reactor->Finish(call->End(started));
    return reactor;
  }

  Executor& ExecutorOf(absl::string_view method) const {
    bool quick = method == "GetServerInfo" || method == "GetActivity" || method == "ClearRefusals";
    return quick ? service_.executor : service_.background;
  }

  const ServiceContext& service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCompileService(const ServiceContext* context) {
  return std::make_unique<CompileServiceImpl>(context);
}

}  // namespace kiln::server
