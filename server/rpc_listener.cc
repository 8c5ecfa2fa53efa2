#include "server/rpc_listener.h"

#include <grpcpp/resource_quota.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/log.h"
#include "proto/base/own_server.h"
#include "proto/base/status_macros.h"
#include "server/net/listen.h"
#include "server/rpc/reflection.h"

namespace kiln::server {
namespace {

constexpr int kMaxRpcThreads = 8;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxCallsOfConnection = 1024;
constexpr int kMaxFrameBytes = 256 << 10;  // what clients may send in one; fewer cost less
constexpr absl::Duration kHandshakeLimit = absl::Seconds(10);
// For calls under way when their connection is old.
constexpr absl::Duration kAgeGrace = absl::Minutes(10);
// Beside connections and a quarter for the cache's files: workers, the HTTP port, log, libraries.
constexpr int64_t kOwnDescriptors = 160;
constexpr int64_t kMaxCacheDescriptors = 512;
constexpr int64_t kMaxConnections = 10000;
// Of what gRPC may hold beyond requests: frames, headers, calls.
constexpr int64_t kOtherBytes = int64_t{256} << 20;

// Each answers some 30,000 hits a second; more than are needed wake each other.
int RpcThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, kMaxRpcThreads);
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

AcceptorLimits ConnectionLimits(const Config& config) {
  AcceptorLimits limits;
  const int64_t all = RaiseDescriptorLimit();
  const int64_t free = all - std::min(all / 4, kMaxCacheDescriptors) - kOwnDescriptors;
  limits.connections = config.max_connections;
  if (limits.connections == 0) {
    limits.connections = static_cast<int>(std::clamp<int64_t>(free, 16, kMaxConnections));
  }
  limits.of_address = config.max_connections_per_address;
  if (limits.of_address == 0) limits.of_address = std::max(1, limits.connections / 2);
  return limits;
}

RequestLimits LimitRequests(const Config& config, Acceptor& acceptor) {
  RequestLimits limits;
  // One request is let in however large it may be.
  constexpr int64_t kLeastBytes = kMaxMessageBytes + kMaxMessageBytes / 4;
  limits.bytes = std::max(kLeastBytes, config.max_request_bytes);
  limits.connection_bytes = std::max(kLeastBytes, config.max_request_bytes / 4);
  limits.time = config.request_timeout;
  limits.received_bytes = [&acceptor](absl::string_view peer) {
    return acceptor.ReceivedBytes(peer);
  };
  return limits;
}

absl::StatusOr<std::string> SocketPath(const Config& config) {
  if (config.socket != "auto") return config.socket;
  KILN_ASSIGN_OR_RETURN(const std::string build, BuildIdOf("/proc/self/exe"));
  KILN_ASSIGN_OR_RETURN(const std::string folder, RuntimeFolder());
  return OwnSocket(folder, build);
}

// What one connection may ask of the server; server/README.md has the list.
void LimitConnections(const Config& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  // Windows stay at 64 KiB until a message is read, and then grow by what is missing of it.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Clients that wait for a compile ask every 10 s whether the server is still there.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshakeLimit));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             Milliseconds(config.max_connection_idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                             Milliseconds(config.max_connection_age));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(kAgeGrace));
  // The last resort: beyond it gRPC ends calls as it likes. Requests are bounded twice before,
  // while they come (LimitRequests) and while they are worked on (server/jobs/admission.h).
  grpc::ResourceQuota quota("kilnd");
  quota.Resize(static_cast<size_t>(2 * config.max_request_bytes + kOtherBytes));
  builder.SetResourceQuota(quota);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcListener>> RpcListener::Listen(const Config& config) {
  std::unique_ptr<RpcListener> listener(new RpcListener(config));
  listener->limits_ = ConnectionLimits(config);
  std::vector<Descriptor> sockets;
  if (!config.listen.IsNone()) {
    KILN_ASSIGN_OR_RETURN(Listening tcp, server::Listen(config.listen, "--listen"));
    listener->address_.port = tcp.port;
    sockets = std::move(tcp.sockets);
  }
  if (config.socket != "none") {
    absl::StatusOr<std::string> path = SocketPath(config);
    absl::StatusOr<Descriptor> socket =
        path.ok() ? ListenOnSocket(*path, "--socket") : path.status();
    if (socket.ok()) {
      listener->socket_ = *path;
      listener->socket_fd_ = socket->get();
      sockets.push_back(*std::move(socket));
    } else if (config.socket != "auto" || sockets.empty()) {
      return socket.status();
    } else {
      Log(LogLevel::kInfo, "there is no socket for this user's programs",
          {{"why", std::string(socket.status().message())}});
    }
  }
  if (sockets.empty()) {
    return absl::InvalidArgumentError(
        "nobody could connect to this server: --listen and --socket are both 'none'");
  }
  KILN_ASSIGN_OR_RETURN(listener->acceptor_, Acceptor::Make(std::move(sockets), listener->limits_));
  return listener;
}

void RpcListener::StopAccepting() {
  // While nobody else can have made a socket of that name.
  if (!socket_.empty()) unlink(socket_.c_str());
  socket_.clear();
  if (acceptor_ != nullptr) acceptor_->Stop();
}

absl::Status RpcListener::Start(const Credentials& credentials, const ServiceContext* context,
                                HealthService& health) {
  Methods methods;
  AddCompileService(context, methods);
  health.AddMethods(methods);
  AddReflection({v1::CompileService::service_full_name(), kHealthServiceName}, methods);
  grpc::ServerBuilder builder;
  LimitConnections(config_, builder);
  using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  door_ = builder.experimental().AddExternalConnectionAcceptor(External::FROM_FD,
                                                               credentials.server_credentials());
  socket_door_ = builder.experimental().AddExternalConnectionAcceptor(
      External::FROM_FD, grpc::InsecureServerCredentials());
  auto server = RpcServer::Start(builder, std::move(methods), RpcThreads(),
                                 LimitRequests(config_, *acceptor_));
  if (server == nullptr) return absl::InternalError("gRPC starts no server");
  grpc_server_ = &server->grpc_server();
  {
    absl::MutexLock lock(&mu_);
    server_ = std::move(server);
  }
  acceptor_->Start([this](int listener, int connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters arrival;
    arrival.listener_fd = listener;
    arrival.fd = connection;
    (listener == socket_fd_ ? socket_door_ : door_)->HandleNewConnection(&arrival);
  });
  return absl::OkStatus();
}

void RpcListener::Stop() {
  StopAccepting();
  std::unique_ptr<RpcServer> server;
  {
    absl::MutexLock lock(&mu_);
    server = std::move(server_);
  }
}

absl::Duration RpcListener::IdleFor() {
  absl::MutexLock lock(&mu_);
  return server_ == nullptr ? absl::ZeroDuration() : server_->IdleFor();
}

DoorCounts RpcListener::Counts() {
  const AcceptorCounts connections = acceptor_->Counts();
  DoorCounts counts;
  counts.connections = connections.connections;
  counts.max_connections = limits_.connections;
  counts.out_of_descriptors = connections.out_of_descriptors;
  counts.exhaustions = connections.exhaustions;
  counts.refused_limit = connections.refused_limit;
  counts.refused_address_limit = connections.refused_address_limit;
  counts.refused_descriptors = connections.refused_descriptors;
  RequestCounts requests;
  {
    absl::MutexLock lock(&mu_);
    if (server_ != nullptr) requests = server_->request_counts();
  }
  counts.incomplete_requests = requests.incomplete;
  counts.incomplete_request_bytes = requests.incomplete_bytes;
  counts.refused_bytes = requests.refused_bytes;
  counts.refused_time = requests.refused_time;
  return counts;
}

}  // namespace kiln::server
