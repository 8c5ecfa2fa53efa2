// One call of a method and what answers it, in the terms of gRPC's callback API.
//
// gRPC's own callback API keeps at least two threads on one queue, which wake each other at every
// event; that costs more than the answers to hits do (tests/bench/README.md). Here calls come from
// completion queues with one thread each, RpcServer's.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace kiln::server {

// What gRPC takes of one message.
inline constexpr int64_t kMaxMessageBytes = int64_t{64} << 20;

class Reactor;
class RpcCall;  // gRPC's side of one call; belongs to RpcServer

// How to answer the calls of one method.
struct Method {
  // True: the client sends a stream, which the reactor reads. False: it sends one message.
  bool reads_stream = false;
  // Of that one message; larger ones are refused.
  int64_t max_request_bytes = int64_t{1} << 20;
  // Makes what answers one call; `request` is that one message as it travels, to be taken or left.
  // The reactor owns itself until OnDone; it starts nothing before Start.
  std::function<Reactor*(grpc::ServerContextBase& context, grpc::ByteBuffer& request)> make;
};

// By path, "/package.Service/Method".
using Methods = absl::flat_hash_map<std::string, Method>;

// Answers one call, whose events come on one thread. At most one read and one write are under way
// at a time, and no write when the call is finished, which it must be, once. Operations may be
// started from any thread and while a lock is held: none calls back from within.
class Reactor {
 public:
  virtual ~Reactor() = default;

  // The first of its calls; operations may be started from here on.
  virtual void Start() = 0;
  // False: the client has sent its last message, or has gone.
  virtual void OnReadDone(bool) {}
  // False: the client has gone. Not called for a write that finishes the call.
  virtual void OnWriteDone(bool) {}
  // The client has gone or its deadline has passed; the call must be finished all the same.
  virtual void OnCancel() {}
  // The last of its calls: nothing of it is under way any more. Deletes it, or lets go of it.
  virtual void OnDone() = 0;

 protected:
  // `message` must stay until OnReadDone.
  void StartRead(grpc::ByteBuffer* message);
  void StartWrite(const grpc::ByteBuffer& message);
  void StartWriteAndFinish(const grpc::ByteBuffer& message, const grpc::Status& status);
  void Finish(const grpc::Status& status);

 private:
  friend class RpcCall;
  RpcCall* call_ = nullptr;  // from before Start until OnDone
};

}  // namespace kiln::server
