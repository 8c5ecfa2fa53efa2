// What gRPC alone can do: a server whose Fetch answers every key with the same bytes from memory.
// kiln_echo BYTES; prints "echo ready: HOST:PORT" and runs until it is killed. As kilnd does on few
// processors, it takes its calls from one completion queue on one thread and copies no bytes.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/scheduling.h"

namespace {

using EchoService =
    kiln::v1::CompileService::WithRawMethod_Fetch<kiln::v1::CompileService::Service>;
using Messages = std::vector<grpc::ByteBuffer>;

constexpr size_t kChunkBytes = 1 << 20;  // as kilnd's
constexpr int kCallsAwaited = 64;

// One call, from waiting for it to its end; the tag of all that the queue says of it.
class EchoFetch {
 public:
  EchoFetch(EchoService& service, grpc::ServerCompletionQueue& queue, const Messages& messages)
      : service_(service), queue_(queue), messages_(messages) {
    service.RequestFetch(&context_, &request_, &writer_, &queue, &queue, this);
  }

  void Proceed(bool ok) {
    if (!came_) new EchoFetch(service_, queue_, messages_);
    came_ = true;
    if (!ok || finishing_) {
      delete this;
    } else {
      WriteNext();
    }
  }

 private:
  void WriteNext() {
    const grpc::ByteBuffer& message = messages_[sent_++];
    finishing_ = sent_ == messages_.size();
    if (finishing_) {
      writer_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK, this);
    } else {
      writer_.Write(message, this);
    }
  }

  EchoService& service_;
  grpc::ServerCompletionQueue& queue_;
  const Messages& messages_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_{&context_};
  size_t sent_ = 0;
  bool came_ = false;
  bool finishing_ = false;
};

Messages MakeMessages(size_t bytes) {
  Messages messages;
  for (size_t sent = 0; sent < bytes; sent += kChunkBytes) {
    kiln::v1::ArtifactChunk chunk;
    chunk.set_data(std::string(std::min(kChunkBytes, bytes - sent), 'x'));
    if (sent == 0) chunk.set_total_bytes(static_cast<int64_t>(bytes));
    const grpc::Slice slice(chunk.SerializeAsString());
    messages.emplace_back(&slice, 1);
  }
  return messages;
}

}  // namespace

int main(int argc, char** argv) {
  const long size = argc == 2 ? std::atol(argv[1]) : 0;
  if (size <= 0) {
    std::fprintf(stderr, "usage: kiln_echo BYTES\n");
    return 2;
  }
  // As kilnd does.
  kiln::SkipDeadlockChecks();
  kiln::GoFirst();
  const Messages messages = MakeMessages(static_cast<size_t>(size));
  EchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  for (int i = 0; i < kCallsAwaited; ++i) new EchoFetch(service, *queue, messages);
  std::printf("echo ready: 127.0.0.1:%d\n", port);
  std::fflush(stdout);
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<EchoFetch*>(tag)->Proceed(ok);
}
