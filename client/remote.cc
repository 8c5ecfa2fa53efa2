#include "client/remote.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/channels.h"
#include "client/chunks.h"
#include "client/credentials.h"
#include "client/local_access.h"
#include "client/own_server.h"
#include "client/trust.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/current_trace.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

using Stub = v1::CompileService::Stub;

constexpr absl::Duration kMostTimeout = absl::Hours(24);
constexpr absl::Duration kReconnectLimit = absl::Milliseconds(200);
constexpr size_t kMostTenantBytes = 64;

// What gRPC says when one side speaks TLS and the other does not, in words.
std::string WhyUnreachable(const std::string& message, bool tls) {
  if (tls && absl::StrContains(message, "wrong version number")) {
    return "it does not speak TLS (http://HOST:PORT, or no tls_ca and tls_cert)";
  }
  const bool hung_up =
      absl::StrContains(message, "Socket closed") || absl::StrContains(message, "Connection reset");
  if (!tls && hung_up) {
    return absl::StrCat(message, "; if it speaks TLS, its name is https://HOST:PORT");
  }
  return message;
}

absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context,
                      const std::string& server, bool tls) {
  if (status.ok()) return absl::OkStatus();
  std::string message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    message =
        absl::StrCat("cannot reach the server at ", server, ": ", WhyUnreachable(message, tls));
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    message = absl::StrCat("the server at ", server, " did not answer in time");
  }
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), message);
  const auto& trailers = context.GetServerTrailingMetadata();
  auto it = trailers.find("kiln-error-bin");
  v1::ErrorDetail detail;
  if (it != trailers.end() &&
      detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.length()))) {
    out = WithDetail(std::move(out), detail);
  }
  return out;
}

absl::StatusOr<RemoteArtifact> ArtifactOf(ChunkReader& chunks) {
  RemoteArtifact out;
  KILN_ASSIGN_OR_RETURN(out.bytes, chunks.Finish());
  out.source = chunks.source();
  out.digest = chunks.digest();
  out.signature = chunks.signature();
  return out;
}

// The steps of one call, one at a time. Lives longer than what makes them.
class Steps {
 public:
  Steps(grpc::ClientContext& context, const Patience& patience)
      : context_(context), patience_(patience) {}
  ~Steps() {
    queue_.Shutdown();
    Next();  // nothing: every step was waited for
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }
  // For the step begun last; false where it has failed, or the call was ended.
  bool Wait() {
    while (patience_ != nullptr && ended_.ok()) {
      void* tag = nullptr;
      bool ok = false;
      const auto until = absl::ToChronoTime(absl::Now() + kPatience);
      if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::TIMEOUT) return ok;
      End(patience_());
    }
    return Next() && ended_.ok();
  }
  // The call, unless `status` is OK. What was begun is still to be waited for.
  void End(absl::Status status) {
    if (status.ok()) return;
    ended_ = std::move(status);
    context_.TryCancel();
  }
  const absl::Status& ended() const { return ended_; }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext& context_;
  const Patience& patience_;
  absl::Status ended_;
  grpc::CompletionQueue queue_;
};

}  // namespace

absl::StatusOr<std::string> GrpcTarget(absl::string_view given) {
  const std::string server = SplitScheme(given).address;
  if (absl::StartsWith(server, "unix:") || absl::StartsWith(server, "dns:")) {
    return server;
  }
  size_t colon = server.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(server.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("server is '", server, "'; expected HOST:PORT, as in 127.0.0.1:7461"));
  }
  std::string host = server.substr(0, colon);
  in_addr v4;
  if (host == "localhost") return absl::StrCat("ipv4:127.0.0.1:", port);
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return absl::StrCat("ipv4:", host, ":", port);
  if (host.front() == '[') return absl::StrCat("ipv6:", host, ":", port);
  return absl::StrCat("dns:///", host, ":", port);
}

absl::Status CheckHeaders(const CallHeaders& headers) {
  const bool is_name = std::all_of(headers.tenant.begin(), headers.tenant.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (!is_name || headers.tenant.size() > kMostTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tenant is '", headers.tenant, "'; expected at most 64 letters, digits, '.', '_' and '-'"));
  }
  if (!headers.priority.empty() && headers.priority != "interactive" &&
      headers.priority != "warmup") {
    return absl::InvalidArgumentError(
        absl::StrCat("priority is '", headers.priority, "'; expected 'interactive' or 'warmup'"));
  }
  return absl::OkStatus();
}

void AddHeaders(const CallHeaders& headers, grpc::ClientContext& context) {
  if (!headers.tenant.empty()) context.AddMetadata("kiln-tenant", headers.tenant);
  if (!headers.priority.empty()) context.AddMetadata("kiln-priority", headers.priority);
}

struct Remote::Connection {
  explicit Connection(std::shared_ptr<grpc::Channel> shared)
      : channel(std::move(shared)), stub(v1::CompileService::NewStub(channel)) {}
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<Stub> stub;
};

Remote::Remote(std::string server, std::shared_ptr<const Credentials> credentials,
               std::shared_ptr<Trust> trust, CallHeaders headers,
               std::shared_ptr<const OwnServer> own)
    : server_(std::move(server)),
      credentials_(std::move(credentials)),
      trust_(std::move(trust)),
      headers_(std::move(headers)),
      own_(std::move(own)),
      holder_([this] {
        absl::MutexLock lock(&mu_);
        connection_.reset();
      }) {
  tls_ = credentials_->UsesTls(server_);
}

Remote::~Remote() = default;

bool Remote::Connected() const {
  const absl::StatusOr<std::shared_ptr<Connection>> connection = Connect();
  return connection.ok() &&
         (*connection)->channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY;
}

absl::Status Remote::AwaitReconnection(absl::Duration limit, const Patience& patience) {
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Connect());
  return kiln::AwaitReconnection(*connection->channel, limit, patience);
}

absl::StatusOr<std::shared_ptr<Remote::Connection>> Remote::Connect() const {
  KILN_RETURN_IF_ERROR(CheckChannelsHere());  // a child of fork may find the mutex locked
  absl::MutexLock lock(&mu_);
  KILN_RETURN_IF_ERROR(CheckChannelsHere());  // exit() locks it after the process is ending
  if (connection_ == nullptr) {
    connection_ = std::make_shared<Connection>(SharedChannel(server_, *credentials_));
  }
  return connection_;
}

absl::Status Remote::EnsureOwnServer(grpc::Channel& channel, const Patience& patience) {
  if (own_ == nullptr) return absl::OkStatus();
  if (channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) return absl::OkStatus();
  return own_->Ensure(patience);
}

absl::StatusOr<std::shared_ptr<Remote::Connection>> Remote::Prepare(grpc::ClientContext& context,
                                                                    absl::Duration timeout,
                                                                    const Patience& patience) {
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, Connect());
  grpc::Channel& channel = *connection->channel;
  KILN_RETURN_IF_ERROR(EnsureOwnServer(channel, patience));
  if (channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    grpc::experimental::ChannelResetConnectionBackoff(&channel);
    KILN_RETURN_IF_ERROR(
        kiln::AwaitReconnection(channel, std::min(timeout, kReconnectLimit), patience));
  }
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(std::min(timeout, kMostTimeout)));
  // Read for each call, since each start of a server makes another token. That the channel is
  // connected says nothing: others of this process share it, and may have connected it again.
  credentials_->Apply(context, own_ == nullptr ? ReadLocalAccess(server_).file.token : "");
  AddHeaders(headers_, context);
  if (const TraceContext trace = CurrentTrace(); trace.valid()) {
    context.AddMetadata("traceparent", FormatTraceparent(trace));
  }
  return connection;
}

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> Remote::Call(Method method, const Request& request,
                                      absl::Duration timeout) {
  grpc::ClientContext context;
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Prepare(context, timeout));
  Response response;
  KILN_RETURN_IF_ERROR(FromGrpc(((*connection->stub).*method)(&context, request, &response),
                                context, server_, tls_));
  return response;
}

template <typename Event, typename Method, typename Request>
absl::Status Remote::ReadAll(Method method, const Request& request,
                             const std::function<absl::Status(const Event&)>& on_event,
                             absl::Duration timeout, const Patience& patience) {
  grpc::ClientContext context;
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection,
                        Prepare(context, timeout, patience));
  Steps steps(context, patience);
  auto reader = ((*connection->stub).*method)(&context, request, steps.queue());
  reader->StartCall(nullptr);
  bool more = steps.Wait();
  for (Event event; more && steps.ended().ok();) {
    reader->Read(&event, nullptr);
    more = steps.Wait();
    if (more) steps.End(on_event(event));
  }
  grpc::Status end;
  reader->Finish(&end, nullptr);
  steps.Wait();
  KILN_RETURN_IF_ERROR(steps.ended());
  return FromGrpc(end, context, server_, tls_);
}

absl::StatusOr<RemoteArtifact> Remote::Fetch(absl::string_view key, absl::Duration timeout,
                                             const Patience& patience) {
  v1::FetchRequest request;
  request.set_key(std::string(key));
  ChunkReader chunks;
  KILN_RETURN_IF_ERROR(ReadAll<v1::ArtifactChunk>(
      &Stub::PrepareAsyncFetch, request,
      [&](const v1::ArtifactChunk& chunk) { return chunks.Add(chunk); }, timeout, patience));
  return ArtifactOf(chunks);
}

absl::StatusOr<RemoteArtifact> Remote::Compile(const v1::Graph& graph, const v1::Device& device,
                                               const v1::CompileOptions& options,
                                               const ProgressCallback& progress,
                                               absl::Duration timeout) {
  v1::CompileRequest request;
  *request.mutable_graph() = graph;
  *request.mutable_device() = device;
  *request.mutable_options() = options;
  ChunkReader chunks;
  v1::Progress last;
  const Patience report = [&]() -> absl::Status {
    if (!progress || progress({last.stage(), last.kernels_done(), last.kernels_total(),
                               last.kernels_cached()})) {
      return absl::OkStatus();
    }
    return absl::CancelledError(kCancelled);
  };
  const auto on_event = [&](const v1::CompileEvent& event) {
    if (event.has_chunk()) return chunks.Add(event.chunk());
    if (!event.has_progress()) return absl::OkStatus();
    last = event.progress();
    return report();
  };
  KILN_RETURN_IF_ERROR(ReadAll<v1::CompileEvent>(&Stub::PrepareAsyncCompile, request, on_event,
                                                 timeout, progress ? report : Patience()));
  return ArtifactOf(chunks);
}

absl::StatusOr<v1::Activity> Remote::GetActivity(int recent, int slowest, absl::Duration timeout) {
  v1::GetActivityRequest request;
  request.set_recent(recent);
  request.set_slowest(slowest);
  return Call<v1::Activity>(&Stub::GetActivity, request, timeout);
}

absl::StatusOr<v1::ServerInfo> Remote::GetServerInfo(absl::Duration timeout,
                                                     const Patience& patience) {
  grpc::ClientContext context;
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection,
                        Prepare(context, timeout, patience));
  Steps steps(context, patience);
  auto call = connection->stub->AsyncGetServerInfo(&context, {}, steps.queue());
  v1::ServerInfo info;
  grpc::Status end;
  call->Finish(&info, &end, nullptr);
  steps.Wait();
  KILN_RETURN_IF_ERROR(steps.ended());
  KILN_RETURN_IF_ERROR(FromGrpc(end, context, server_, tls_));
  KILN_RETURN_IF_ERROR(trust_->Introduce(server_, info.public_key()));
  return info;
}

absl::Status Remote::Interpret(
    const v1::InterpretRequest& request,
    const std::function<absl::Status(const v1::InterpretEvent&)>& on_event,
    absl::Duration timeout) {
  return ReadAll<v1::InterpretEvent>(&Stub::PrepareAsyncInterpret, request, on_event, timeout);
}

absl::StatusOr<v1::ListCacheResponse> Remote::ListCache(absl::string_view kind, int limit,
                                                        absl::Duration timeout) {
  v1::ListCacheRequest request;
  request.set_kind(std::string(kind));
  request.set_limit(limit);
  return Call<v1::ListCacheResponse>(&Stub::ListCache, request, timeout);
}

absl::StatusOr<v1::VerifyCacheResponse> Remote::VerifyCache(absl::Duration timeout) {
  return Call<v1::VerifyCacheResponse>(&Stub::VerifyCache, v1::VerifyCacheRequest(), timeout);
}

absl::StatusOr<v1::ExplainMissResponse> Remote::ExplainMiss(const v1::ExplainMissRequest& request,
                                                            absl::Duration timeout) {
  return Call<v1::ExplainMissResponse>(&Stub::ExplainMiss, request, timeout);
}

absl::StatusOr<int64_t> Remote::ClearCache(absl::string_view kind, absl::Duration timeout) {
  v1::ClearCacheRequest request;
  request.set_kind(std::string(kind));
  KILN_ASSIGN_OR_RETURN(const auto response,
                        Call<v1::ClearCacheResponse>(&Stub::ClearCache, request, timeout));
  return response.removed();
}

absl::Status Remote::ReportChoices(const v1::ReportChoicesRequest& request,
                                   absl::Duration timeout) {
  return Call<v1::ReportChoicesResponse>(&Stub::ReportChoices, request, timeout).status();
}

absl::Status Remote::ReportRun(const v1::ReportRunRequest& request, absl::Duration timeout) {
  return Call<v1::ReportRunResponse>(&Stub::ReportRun, request, timeout).status();
}

absl::StatusOr<int64_t> Remote::PinCache(absl::string_view key_prefix, bool pinned,
                                         absl::Duration timeout) {
  v1::PinCacheRequest request;
  request.set_key_prefix(std::string(key_prefix));
  request.set_pinned(pinned);
  KILN_ASSIGN_OR_RETURN(const auto response,
                        Call<v1::PinCacheResponse>(&Stub::PinCache, request, timeout));
  return response.changed();
}

absl::StatusOr<int64_t> Remote::RemoveCache(absl::string_view key_prefix, absl::Duration timeout) {
  v1::RemoveCacheRequest request;
  request.set_key_prefix(std::string(key_prefix));
  KILN_ASSIGN_OR_RETURN(const auto response,
                        Call<v1::RemoveCacheResponse>(&Stub::RemoveCache, request, timeout));
  return response.removed();
}

absl::Status Remote::ExportCache(
    const v1::ExportCacheRequest& request,
    const std::function<absl::Status(const v1::CacheRecord&)>& on_record, absl::Duration timeout) {
  return ReadAll<v1::CacheRecord>(&Stub::PrepareAsyncExportCache, request, on_record, timeout);
}

absl::StatusOr<v1::ImportCacheResponse> Remote::ImportCache(
    const std::function<bool(v1::CacheRecord&)>& next, absl::Duration timeout) {
  grpc::ClientContext context;
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, Prepare(context, timeout));
  v1::ImportCacheResponse response;
  auto writer = connection->stub->ImportCache(&context, &response);
  v1::CacheRecord record;
  // A write fails where the server ended the call; Finish says why.
  while (next(record) && writer->Write(record)) {
  }
  writer->WritesDone();
  KILN_RETURN_IF_ERROR(FromGrpc(writer->Finish(), context, server_, tls_));
  return response;
}

}  // namespace kiln
