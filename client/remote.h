// The server, over gRPC: one call a function, errors with their details.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/channels.h"
#include "client/patience.h"
#include "kiln/client.h"
#include "proto/base/digest.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace kiln {

class Credentials;
class OwnServer;
class Trust;
namespace v1 {
class ReportChoicesRequest;
}

// How a server shall treat this client's calls; empty ones are not sent.
struct CallHeaders {
  std::string tenant;    // whose share of the server; at most 64 of [A-Za-z0-9._-]
  std::string priority;  // "interactive" or "warmup"
};
// What a compile ends with whose progress callback returned false.
inline constexpr char kCancelled[] = "the caller cancelled the compile";
// INVALID_ARGUMENT, naming the option, for what a server would refuse.
absl::Status CheckHeaders(const CallHeaders& headers);
void AddHeaders(const CallHeaders& headers, grpc::ClientContext& context);

struct RemoteArtifact {
  std::string bytes;   // digest checked
  std::string source;  // as the server says
  Digest digest;
  std::string signature;  // empty: none; not checked yet
};

// Thread-safe. Connects with the first call and shares the connection (channels.h). One attempt a
// call: endpoints.h repeats them. A fork can call where nothing had been called before it, else
// every call is FAILED_PRECONDITION. A server that cannot be reached is UNAVAILABLE, one that does
// not answer DEADLINE_EXCEEDED after the timeout. A `patience` that ends ends the call.
class Remote {
 public:
  // `own`: what starts the server where it does not run; null for a server that others start.
  Remote(std::string server, std::shared_ptr<const Credentials> credentials,
         std::shared_ptr<Trust> trust, CallHeaders headers = {},
         std::shared_ptr<const OwnServer> own = nullptr);
  ~Remote();

  // Whether there is a connection now; where not, one is begun.
  bool Connected() const;
  // For `limit`, or until there is a connection again after a failure.
  absl::Status AwaitReconnection(absl::Duration limit, const Patience& patience);

  absl::StatusOr<RemoteArtifact> Fetch(absl::string_view key, absl::Duration timeout,
                                       const Patience& patience = nullptr);
  // Its patience is `progress`.
  absl::StatusOr<RemoteArtifact> Compile(const v1::Graph& graph, const v1::Device& device,
                                         const v1::CompileOptions& options,
                                         const ProgressCallback& progress, absl::Duration timeout);
  // UNAUTHENTICATED where the server shows another public key than the known one (trust.h).
  absl::StatusOr<v1::ServerInfo> GetServerInfo(absl::Duration timeout,
                                               const Patience& patience = nullptr);
  absl::StatusOr<v1::Activity> GetActivity(int recent, int slowest, absl::Duration timeout);
  absl::Status Interpret(const v1::InterpretRequest& request,
                         const std::function<absl::Status(const v1::InterpretEvent&)>& on_event,
                         absl::Duration timeout);
  absl::Status ReportRun(const v1::ReportRunRequest& request, absl::Duration timeout);
  absl::Status ReportChoices(const v1::ReportChoicesRequest& request, absl::Duration timeout);
  absl::StatusOr<v1::ListCacheResponse> ListCache(absl::string_view kind, int limit,
                                                  absl::Duration timeout);
  absl::StatusOr<v1::VerifyCacheResponse> VerifyCache(absl::Duration timeout);
  absl::StatusOr<int64_t> ClearCache(absl::string_view kind, absl::Duration timeout);
  absl::StatusOr<int64_t> PinCache(absl::string_view key_prefix, bool pinned,
                                   absl::Duration timeout);
  absl::StatusOr<int64_t> RemoveCache(absl::string_view key_prefix, absl::Duration timeout);
  absl::Status ExportCache(const v1::ExportCacheRequest& request,
                           const std::function<absl::Status(const v1::CacheRecord&)>& on_record,
                           absl::Duration timeout);
  // `next` fills a record, or returns false where there are no more.
  absl::StatusOr<v1::ImportCacheResponse> ImportCache(
      const std::function<bool(v1::CacheRecord&)>& next, absl::Duration timeout);
  absl::StatusOr<v1::ExplainMissResponse> ExplainMiss(const v1::ExplainMissRequest& request,
                                                      absl::Duration timeout);

  const std::string& server() const { return server_; }

 private:
  struct Connection;
  // Made when first asked for, so that a process which only has clients can fork: see
  // CheckChannelsHere.
  absl::StatusOr<std::shared_ptr<Connection>> Connect() const;
  // Before a call: that there is a server, where it is this user's own.
  absl::Status EnsureOwnServer(grpc::Channel& channel, const Patience& patience);
  // The deadline and the headers, after that. Where the last connection failed, a moment is left
  // for another one.
  absl::StatusOr<std::shared_ptr<Connection>> Prepare(grpc::ClientContext& context,
                                                      absl::Duration timeout,
                                                      const Patience& patience = nullptr);
  // Defined where they are used. `method` is the stub's member.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout);
  // An error of `on_event` ends the call.
  template <typename Event, typename Method, typename Request>
  absl::Status ReadAll(Method method, const Request& request,
                       const std::function<absl::Status(const Event&)>& on_event,
                       absl::Duration timeout, const Patience& patience = nullptr);

  std::string server_;
  std::shared_ptr<const Credentials> credentials_;
  std::shared_ptr<Trust> trust_;
  CallHeaders headers_;
  std::shared_ptr<const OwnServer> own_;
  bool tls_ = false;
  mutable absl::Mutex mu_;
  mutable std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  ChannelHolder holder_;
};

// What gRPC connects to for "HOST:PORT", with a scheme or without: an address that needs no
// resolver where HOST is one. INVALID_ARGUMENT unless it is HOST:PORT with a port of 1 to 65535, or
// a gRPC URI ("unix:...").
absl::StatusOr<std::string> GrpcTarget(absl::string_view server);

}  // namespace kiln
