// What gRPC alone can do: a server whose Fetch answers every key with the same bytes from memory.
// kiln_echo BYTES; prints "echo ready: HOST:PORT" and runs until it is killed. Like kilnd it takes
// its calls from one completion queue on one thread.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/scheduling.h"

namespace {

using EchoService =
    kiln::v1::CompileService::WithAsyncMethod_Fetch<kiln::v1::CompileService::Service>;

constexpr size_t kChunkBytes = 1 << 20;  // as kilnd's
constexpr int kCallsAwaited = 64;

// One call, from waiting for it to its end; the tag of all that the queue says of it.
class EchoFetch {
 public:
  EchoFetch(EchoService& service, grpc::ServerCompletionQueue& queue, const std::string& bytes)
      : service_(service), queue_(queue), bytes_(bytes) {
    service.RequestFetch(&context_, &request_, &writer_, &queue, &queue, this);
  }

  void Proceed(bool ok) {
    if (!came_) new EchoFetch(service_, queue_, bytes_);
    came_ = true;
    if (!ok || finishing_) {
      delete this;
    } else {
      WriteNext();
    }
  }

 private:
  void WriteNext() {
    kiln::v1::ArtifactChunk chunk;
    chunk.set_data(bytes_.substr(sent_, kChunkBytes));
    if (sent_ == 0) chunk.set_total_bytes(static_cast<int64_t>(bytes_.size()));
    sent_ += chunk.data().size();
    finishing_ = sent_ == bytes_.size();
    if (finishing_) {
      writer_.WriteAndFinish(chunk, grpc::WriteOptions(), grpc::Status::OK, this);
    } else {
      writer_.Write(chunk, this);
    }
  }

  EchoService& service_;
  grpc::ServerCompletionQueue& queue_;
  const std::string& bytes_;
  grpc::ServerContext context_;
  kiln::v1::FetchRequest request_;
  grpc::ServerAsyncWriter<kiln::v1::ArtifactChunk> writer_{&context_};
  size_t sent_ = 0;
  bool came_ = false;
  bool finishing_ = false;
};

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
  const std::string bytes(static_cast<size_t>(size), 'x');
  EchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  for (int i = 0; i < kCallsAwaited; ++i) new EchoFetch(service, *queue, bytes);
  std::printf("echo ready: 127.0.0.1:%d\n", port);
  std::fflush(stdout);
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<EchoFetch*>(tag)->Proceed(ok);
}
