#include "tests/integration/calls.h"

#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/digest.h"

namespace kiln::integration {
namespace {

constexpr size_t kMaxChunkBytes = 1 << 20;

void SetDeadline(grpc::ClientContext& context, absl::Duration deadline) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
}

// Puts chunks together and holds them to what compile_service.proto promises.
class Collector {
 public:
  explicit Collector(Answer& answer) : answer_(answer) {}

  void Add(const v1::ArtifactChunk& chunk) {
    if (answer_.chunks++ == 0) {
      total_bytes_ = chunk.total_bytes();
      digest_ = chunk.digest();
      answer_.source = chunk.source();
    }
    EXPECT_LE(chunk.data().size(), kMaxChunkBytes);
    answer_.bytes += chunk.data();
  }

  void Finish() {
    if (!answer_.status.ok()) return;
    EXPECT_EQ(static_cast<int64_t>(answer_.bytes.size()), total_bytes_);
    EXPECT_EQ(std::string(Sha256(answer_.bytes).view()), digest_);
    EXPECT_TRUE(answer_.artifact.ParseFromString(answer_.bytes));
  }

 private:
  Answer& answer_;
  int64_t total_bytes_ = -1;
  std::string digest_;
};

void ReadDetail(const grpc::ClientContext& context, Answer& answer) {
  const auto& trailers = context.GetServerTrailingMetadata();
  auto it = trailers.find("kiln-error-bin");
  if (it == trailers.end()) return;
  EXPECT_TRUE(answer.detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size())));
}

}  // namespace

Answer Compile(v1::CompileService::Stub& stub, const v1::CompileRequest& request,
               const OnProgress& on_progress, absl::Duration deadline) {
  grpc::ClientContext context;
  SetDeadline(context, deadline);
  Answer answer;
  Collector collector(answer);
  auto reader = stub.Compile(&context, request);
  v1::CompileEvent event;
  while (reader->Read(&event)) {
    if (event.has_chunk()) collector.Add(event.chunk());
    if (!event.has_progress()) continue;
    ++answer.progress_events;
    if (on_progress) on_progress(event.progress(), context);
  }
  answer.status = reader->Finish();
  collector.Finish();
  ReadDetail(context, answer);
  return answer;
}

Answer Fetch(v1::CompileService::Stub& stub, absl::string_view key_hex) {
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(60));
  v1::FetchRequest request;
  request.set_key(absl::HexStringToBytes(key_hex));
  Answer answer;
  Collector collector(answer);
  auto reader = stub.Fetch(&context, request);
  v1::ArtifactChunk chunk;
  while (reader->Read(&chunk)) collector.Add(chunk);
  answer.status = reader->Finish();
  collector.Finish();
  ReadDetail(context, answer);
  return answer;
}

v1::VerifyCacheResponse VerifyCache(v1::CompileService::Stub& stub) {
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(60));
  v1::VerifyCacheResponse response;
  grpc::Status status = stub.VerifyCache(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << Text(status);
  return response;
}

v1::ServerInfo GetServerInfo(v1::CompileService::Stub& stub) {
  grpc::ClientContext context;
  SetDeadline(context, absl::Seconds(60));
  v1::ServerInfo response;
  grpc::Status status = stub.GetServerInfo(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << Text(status);
  return response;
}

std::string Text(const grpc::Status& status) {
  return absl::StrCat(static_cast<int>(status.error_code()), ": ", status.error_message());
}

}  // namespace kiln::integration
