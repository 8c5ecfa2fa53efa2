// What gRPC alone can do: a server whose Fetch answers every key with the same bytes from memory.
// kiln_echo BYTES; prints "echo ready: HOST:PORT" and runs until it is killed.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kiln/v1/compile_service.grpc.pb.h"
#include "proto/base/scheduling.h"

namespace {

constexpr size_t kChunkBytes = 1 << 20;  // as kilnd's

class EchoFetch final : public grpc::ServerWriteReactor<kiln::v1::ArtifactChunk> {
 public:
  explicit EchoFetch(const std::string& bytes) : bytes_(bytes) { WriteNext(); }

  void OnWriteDone(bool ok) override {
    if (ok) {
      WriteNext();
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    chunk_.set_data(bytes_.substr(sent_, kChunkBytes));
    if (sent_ == 0) chunk_.set_total_bytes(static_cast<int64_t>(bytes_.size()));
    sent_ += chunk_.data().size();
    if (sent_ == bytes_.size()) {
      StartWriteAndFinish(&chunk_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      StartWrite(&chunk_);
    }
  }

  const std::string& bytes_;
  size_t sent_ = 0;
  kiln::v1::ArtifactChunk chunk_;
};

class EchoService final : public kiln::v1::CompileService::CallbackService {
 public:
  explicit EchoService(size_t bytes) : bytes_(bytes, 'x') {}

  grpc::ServerWriteReactor<kiln::v1::ArtifactChunk>* Fetch(grpc::CallbackServerContext*,
                                                           const kiln::v1::FetchRequest*) override {
    return new EchoFetch(bytes_);
  }

 private:
  const std::string bytes_;
};

}  // namespace

int main(int argc, char** argv) {
  const long bytes = argc == 2 ? std::atol(argv[1]) : 0;
  if (bytes <= 0) {
    std::fprintf(stderr, "usage: kiln_echo BYTES\n");
    return 2;
  }
  // As kilnd does.
  kiln::SkipDeadlockChecks();
  kiln::GoFirst();
  EchoService service(static_cast<size_t>(bytes));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("echo ready: 127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();
}
