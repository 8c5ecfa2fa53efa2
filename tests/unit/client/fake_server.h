// A server in the test's own process.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/digest.h"
#include "proto/base/key.h"
#include "tests/unit/client/artifacts.h"

namespace kiln::testing {

// Answers every compile with AddAndDouble(8), in chunks of 1000 bytes.
class FakeServer final : public v1::CompileService::Service {
 public:
  FakeServer() { Start(); }
  ~FakeServer() override { Stop(); }

  // On the port of before.
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials(), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  // Cuts every connection.
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    std::lock_guard lock(mutex);
    ++infos;
    info->set_compiler_build(build);
    for (const auto& [target, target_build] : builds) {
      v1::TargetBuild& out = *info->add_target_builds();
      out.set_target(target);
      out.set_compiler_build(target_build);
    }
    return grpc::Status::OK;
  }

  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::ArtifactChunk>* writer) override {
    std::lock_guard lock(mutex);
    ++fetches;
    auto it = stored.find(request->key());
    if (it == stored.end()) return {grpc::StatusCode::NOT_FOUND, "no artifact of this key"};
    for (const v1::ArtifactChunk& chunk : Chunks(it->second, "disk")) writer->Write(chunk);
    return grpc::Status::OK;
  }

  grpc::Status Compile(grpc::ServerContext* context, const v1::CompileRequest* request,
                       grpc::ServerWriter<v1::CompileEvent>* writer) override {
    std::lock_guard lock(mutex);
    ++compiles;
    for (const auto& [name, value] : context->client_metadata()) {
      headers[std::string(name.data(), name.size())] = std::string(value.data(), value.size());
    }
    if (busy > 0) {
      --busy;
      v1::ErrorDetail detail;
      detail.set_reason(v1::ErrorDetail::REASON_QUEUE_FULL);
      detail.set_retry_after_ms(retry_after_ms);
      context->AddTrailingMetadata("kiln-error-bin", detail.SerializeAsString());
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full"};
    }
    if (refuse) {
      v1::ErrorDetail detail;
      detail.set_reason(v1::ErrorDetail::REASON_BAD_GRAPH);
      detail.set_node("add_1");
      context->AddTrailingMetadata("kiln-error-bin", detail.SerializeAsString());
      return {grpc::StatusCode::INVALID_ARGUMENT, "node 'add_1': bad"};
    }
    while (silent && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    v1::CompileEvent event;
    event.mutable_progress()->set_stage("fuse");
    event.mutable_progress()->set_kernels_total(2);
    writer->Write(event);
    const auto own = builds.find(request->device().target());
    Digest key = ArtifactKey(request->graph(), request->device(), request->options(),
                             own == builds.end() ? build : own->second);
    v1::Artifact artifact = AddAndDouble(8);
    artifact.mutable_header()->set_key(wrong_key ? std::string(64, '0') : key.ToHex());
    artifact.mutable_header()->add_kernels()->set_cached(true);
    artifact.mutable_header()->add_kernels();
    v1::Debug::StageIr& ir = *artifact.mutable_debug()->add_ir();
    ir.set_stage("fuse");
    ir.set_text("module {}");
    if (change != nullptr) change(*artifact.mutable_program());
    std::string bytes = Sealed(artifact);
    std::vector<v1::ArtifactChunk> chunks = Chunks(bytes, "compiled");
    if (announced > 0) chunks[0].set_total_bytes(announced);
    if (endless) {
      chunks[0].mutable_data()->resize(1 << 20);
      v1::CompileEvent piece;
      *piece.mutable_chunk() = chunks[0];
      while (writer->Write(piece)) {
      }
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (break_off > 0 && i == chunks.size() / 2) {
        --break_off;
        return {grpc::StatusCode::UNAVAILABLE, "the connection is gone"};
      }
      const v1::ArtifactChunk& chunk = chunks[i];
      v1::CompileEvent chunk_event;
      *chunk_event.mutable_chunk() = chunk;
      writer->Write(chunk_event);
    }
    if (announced == 0) stored[std::string(key.view())] = bytes;
    return grpc::Status::OK;
  }

  grpc::Status ReportRun(grpc::ServerContext*, const v1::ReportRunRequest* request,
                         v1::ReportRunResponse*) override {
    std::lock_guard lock(mutex);
    if (refuse) return {grpc::StatusCode::PERMISSION_DENIED, "reports are refused"};
    reports.push_back(*request);
    return grpc::Status::OK;
  }

  std::mutex mutex;
  std::map<std::string, std::string> stored;
  std::string build = "build-1";
  std::map<v1::Target, std::string> builds;  // of targets of their own
  std::vector<v1::ReportRunRequest> reports;
  bool refuse = false;
  bool silent = false;  // a compile waits until it is cancelled
  bool wrong_key = false;
  bool damage = false;
  std::function<void(v1::Program&)> change;    // of every artifact, before it is sealed
  int64_t announced = 0;                       // bytes of a compile's artifact; 0: as many as come
  bool endless = false;                        // a compile's chunks never end
  int busy = 0;                                // so many compiles are refused for now
  int retry_after_ms = 20;                     // what a refusal hints at
  int break_off = 0;                           // so many compiles end in the middle of the answer
  std::map<std::string, std::string> headers;  // of the last compile
  int infos = 0, fetches = 0, compiles = 0;

 private:
  std::vector<v1::ArtifactChunk> Chunks(const std::string& bytes, const char* source) {
    std::vector<v1::ArtifactChunk> out;
    for (size_t at = 0; at < bytes.size(); at += 1000) {
      v1::ArtifactChunk& chunk = out.emplace_back();
      if (at == 0) {
        chunk.set_total_bytes(static_cast<int64_t>(bytes.size()));
        chunk.set_digest(std::string(Sha256(bytes).view()));
        chunk.set_source(source);
      }
      chunk.set_data(bytes.substr(at, 1000));
    }
    if (damage) (*out.back().mutable_data())[0] ^= 1;
    return out;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace kiln::testing
