// The gRPC port and socket: who may connect, what a connection may hold, and the server behind it.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/address.h"
#include "server/config.h"
#include "server/observe/door_counts.h"
#include "server/rpc/acceptor.h"
#include "server/rpc/health.h"
#include "server/rpc/rpc_server.h"
#include "server/security/credentials.h"
#include "server/service.h"

namespace kiln::server {

// Counts may be called from any thread, the rest by one.
class RpcListener {
 public:
  // Takes the address and the socket; nobody is answered before Start. `config` must outlive this.
  // Errors as those of server/net/listen.h; a socket that was not asked for by its name is done
  // without where there is an address, with a line of the log.
  static absl::StatusOr<std::unique_ptr<RpcListener>> Listen(const Config& config);
  ~RpcListener() { Stop(); }

  // What is given must outlive Stop. INTERNAL where gRPC starts no server.
  absl::Status Start(const Credentials& credentials, const ServiceContext* context,
                     HealthService& health);
  void StopAccepting();
  // Ends every call and waits for its end.
  void Stop();
  // REQUIRES: between Start and Stop.
  grpc::Server& grpc_server() { return *grpc_server_; }

  // With the real port where 0 was asked for.
  const Address& address() const { return address_; }
  // Of the Unix socket; empty where there is none.
  const std::string& socket() const { return socket_; }
  // How long no call has been under way.
  absl::Duration IdleFor();
  DoorCounts Counts();

 private:
  explicit RpcListener(const Config& config) : config_(config), address_(config.listen) {}

  const Config& config_;
  Address address_;
  std::string socket_;
  int socket_fd_ = -1;
  AcceptorLimits limits_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> socket_door_;
  grpc::Server* grpc_server_ = nullptr;
  absl::Mutex mu_;
  std::unique_ptr<RpcServer> server_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
