// A gRPC server over completion queues: the calls of every method are answered by reactors.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/rpc/reactor.h"
#include "server/rpc/request_watch.h"

namespace kiln::server {

class RpcServer {
 public:
  // Builds and starts the server; `builder` has its ports and settings and no service. Reactors are
  // called on `threads` threads, at least 1, each with a queue of its own, and must not block them.
  // Null where gRPC starts no server: its ports are taken.
  static std::unique_ptr<RpcServer> Start(grpc::ServerBuilder& builder, Methods methods,
                                          int threads, RequestLimits limits = {});
  // Ends what is under way if the server has not been shut down, and waits for every OnDone.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  grpc::Server& grpc_server() { return *server_; }
  RequestCounts request_counts() { return watch_.Counts(); }
  // How long no call has been under way.
  absl::Duration IdleFor() const;

 private:
  friend class RpcCall;

  RpcServer(Methods methods, RequestLimits limits)
      : methods_(std::move(methods)), watch_(std::move(limits)) {}

  const Methods methods_;
  RequestWatch watch_;  // outlives the calls
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
  std::atomic<int> calls_ = 0;  // awaited or under way
  std::atomic<int> under_way_ = 0;
  std::atomic<int64_t> last_end_ns_ = absl::GetCurrentTimeNanos();  // of a call
};

}  // namespace kiln::server
