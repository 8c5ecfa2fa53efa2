#include "kiln/client.h"

#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/credentials.h"
#include "client/debug_dir.h"
#include "client/device_cpu.h"
#include "client/loader.h"
#include "client/program_cache.h"
#include "client/remote.h"
#include "client/runtime/cpu/executor.h"
#include "client/trust.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/digest.h"
#include "proto/base/key.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr const char* kDefaultServer = "127.0.0.1:7461";
constexpr int kMostThreads = 1024;

std::string FirstNonEmpty(const std::string& given, const char* variable, const char* fallback) {
  if (!given.empty()) return given;
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : fallback;
}

double MillisecondsSince(absl::Time start) {
  return absl::ToDoubleMilliseconds(absl::Now() - start);
}

// A string with static storage for each source that a server may name.
const char* StaticSource(absl::string_view source) {
  for (const char* known : {"memory", "disk", "compiled", "coalesced"}) {
    if (source == known) return known;
  }
  return "server";
}

}  // namespace

// ---- Program

Program::Program(std::unique_ptr<runtime::LoadedProgram> loaded) : loaded_(std::move(loaded)) {}
Program::~Program() = default;

absl::StatusOr<std::shared_ptr<const Program>> Program::Load(absl::string_view artifact_file,
                                                             int threads) {
  KILN_ASSIGN_OR_RETURN(absl::string_view bytes, FromArtifactFile(artifact_file));
  KILN_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedProgram::Load(bytes, threads));
  return std::make_shared<const Program>(std::move(loaded));
}

absl::Status Program::Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                          const kiln_run_options* options) const {
  return loaded_->executor().Run(inputs, outputs, options);
}

absl::StatusOr<Outputs> Program::Run(absl::Span<const kiln_tensor> inputs) const {
  Outputs outputs(static_cast<size_t>(artifact().program().outputs_size()));
  KILN_RETURN_IF_ERROR(Run(inputs, outputs.span(), nullptr));
  return outputs;
}

const v1::Artifact& Program::artifact() const {
  return loaded_->artifact();
}

// ---- Client

struct Client::Impl {
  Impl(std::string server, std::shared_ptr<const Credentials> credentials,
       std::shared_ptr<Trust> trust)
      : trust(trust), remote(std::move(server), std::move(credentials), trust) {}

  absl::StatusOr<std::string> CompilerBuild(bool refresh);
  absl::StatusOr<Digest> Key(const v1::Graph& graph, bool refresh);
  absl::Status CheckSignature(const v1::Graph& graph, const Digest& key,
                              const RemoteArtifact& artifact);
  absl::StatusOr<ArtifactBytes> FetchBytes(const v1::Graph& graph, const Digest& key,
                                           absl::Time start);
  absl::StatusOr<ArtifactBytes> CompileBytes(const v1::Graph& graph, const Digest& key,
                                             absl::Time start, const ProgressCallback& progress,
                                             absl::Duration timeout_or_zero);
  absl::StatusOr<Compiled> LoadBytes(const v1::Graph& graph, const Digest& key,
                                     ArtifactBytes artifact);

  const std::shared_ptr<Trust> trust;
  Remote remote;
  absl::Duration timeout;
  int threads = 0;
  std::string debug_dir;
  v1::Device device;
  v1::CompileOptions options;

  absl::Mutex mutex;
  std::string compiler_build ABSL_GUARDED_BY(mutex);  // empty: not asked yet
};

absl::StatusOr<std::string> Client::Impl::CompilerBuild(bool refresh) {
  if (!refresh) {
    absl::MutexLock lock(&mutex);
    if (!compiler_build.empty()) return compiler_build;
  }
  KILN_ASSIGN_OR_RETURN(v1::ServerInfo info, remote.GetServerInfo(timeout));
  absl::MutexLock lock(&mutex);
  compiler_build = info.compiler_build();
  return compiler_build;
}

absl::StatusOr<Digest> Client::Impl::Key(const v1::Graph& graph, bool refresh) {
  KILN_ASSIGN_OR_RETURN(std::string build, CompilerBuild(refresh));
  return ArtifactKey(graph, device, options, build);
}

// Nothing of an artifact is read before this.
absl::Status Client::Impl::CheckSignature(const v1::Graph& graph, const Digest& key,
                                          const RemoteArtifact& artifact) {
  absl::Status status = trust->Check(remote.server(), key, artifact.digest, artifact.signature);
  if (status.ok()) return status;
  // The server may have been replaced since it was asked for its compiler, which is part of the
  // key, and for its own key.
  KILN_ASSIGN_OR_RETURN(Digest key_now, Key(graph, true));
  if (trust->Check(remote.server(), key_now, artifact.digest, artifact.signature).ok()) {
    return absl::OkStatus();
  }
  return status;
}

absl::StatusOr<ArtifactBytes> Client::Impl::FetchBytes(const v1::Graph& graph, const Digest& key,
                                                       absl::Time start) {
  KILN_ASSIGN_OR_RETURN(RemoteArtifact fetched, remote.Fetch(key.view(), timeout));
  KILN_RETURN_IF_ERROR(CheckSignature(graph, key, fetched));
  ArtifactBytes out;
  out.bytes = std::move(fetched.bytes);
  out.source = fetched.source;
  out.key = key.ToHex();
  out.fetch_ms = MillisecondsSince(start);
  return out;
}

// `start` is when the call began, before the server was asked for its compiler.
absl::StatusOr<ArtifactBytes> Client::Impl::CompileBytes(const v1::Graph& graph, const Digest& key,
                                                         absl::Time start,
                                                         const ProgressCallback& progress,
                                                         absl::Duration timeout_or_zero) {
  absl::StatusOr<ArtifactBytes> fetched = FetchBytes(graph, key, start);
  // A damaged entry is the server's to replace: compiling again does that.
  if (!absl::IsNotFound(fetched.status()) && !absl::IsDataLoss(fetched.status())) return fetched;
  ArtifactBytes out;
  out.fetch_ms = MillisecondsSince(start);
  start = absl::Now();
  KILN_ASSIGN_OR_RETURN(
      RemoteArtifact compiled,
      remote.Compile(graph, device, options, progress,
                     timeout_or_zero > absl::ZeroDuration() ? timeout_or_zero : timeout));
  KILN_RETURN_IF_ERROR(CheckSignature(graph, key, compiled));
  out.compile_ms = MillisecondsSince(start);
  out.bytes = std::move(compiled.bytes);
  out.source = compiled.source;
  out.key = key.ToHex();
  return out;
}

absl::StatusOr<Compiled> Client::Impl::LoadBytes(const v1::Graph& graph, const Digest& key,
                                                 ArtifactBytes artifact) {
  absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedProgram::Load(artifact.bytes, threads));
  std::string made_key = loaded->artifact().header().key();
  Digest kept_key = key;
  if (made_key != key.ToHex()) {
    // The server may have been replaced by a newer one since it was asked for its compiler.
    KILN_ASSIGN_OR_RETURN(kept_key, Key(graph, true));
    if (made_key != kept_key.ToHex()) {
      return absl::DataLossError("the server answered with the artifact of another request");
    }
  }
  if (!debug_dir.empty()) {
    absl::Status written = WriteDebugFiles(debug_dir, graph, loaded->artifact());
    if (!written.ok()) Log(LogLevel::kWarning, written.message());
  }
  Compiled out;
  out.program = KeepProgram(kept_key, std::make_shared<const Program>(std::move(loaded)));
  out.source = StaticSource(artifact.source);
  out.key = kept_key.ToHex();
  out.fetch_ms = artifact.fetch_ms;
  out.compile_ms = artifact.compile_ms;
  out.load_ms = MillisecondsSince(start);
  out.artifact_bytes = static_cast<int64_t>(artifact.bytes.size());
  Log(LogLevel::kInfo, "loaded",
      {{"graph", graph.name()},
       {"key", kept_key.ShortHex()},
       {"source", out.source},
       {"fetch_ms", absl::StrCat(out.fetch_ms)},
       {"compile_ms", absl::StrCat(out.compile_ms)},
       {"load_ms", absl::StrCat(out.load_ms)}});
  return out;
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  std::string server = FirstNonEmpty(options.server, "KILN_SERVER", kDefaultServer);
  KILN_RETURN_IF_ERROR(GrpcTarget(server).status());
  if (options.threads < 0 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; expected 0 to ", kMostThreads));
  }
  if (options.optimization_level < 0 || options.optimization_level > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimization level is ", options.optimization_level, "; expected 0 to 3"));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout is not positive");
  }
  KILN_ASSIGN_OR_RETURN(auto credentials, Credentials::Load(options));
  KILN_RETURN_IF_ERROR(credentials->CheckServer(server));
  KILN_ASSIGN_OR_RETURN(auto trust, Trust::Load(options));
  auto impl = std::make_unique<Impl>(server, std::move(credentials), std::move(trust));
  impl->timeout = options.timeout;
  KILN_ASSIGN_OR_RETURN(impl->device, DescribeCpu(options.arch, options.threads));
  impl->threads = impl->device.processors();
  for (const std::string& library : options.libraries) impl->device.add_libraries(library);
  impl->debug_dir = FirstNonEmpty(options.debug_dir, "KILN_DEBUG_DIR", "");
  impl->options.set_optimization_level(options.optimization_level);
  impl->options.set_disable_fusion(options.disable_fusion);
  impl->options.set_fast_math(options.fast_math);
  impl->options.set_debug(options.debug || !impl->debug_dir.empty());
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<Compiled> Client::Fetch(const v1::Graph& graph) {
  absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(Digest key, impl_->Key(graph, false));
  if (auto program = FindProgram(key)) return Compiled{std::move(program), "local", key.ToHex()};
  KILN_ASSIGN_OR_RETURN(ArtifactBytes artifact, impl_->FetchBytes(graph, key, start));
  return impl_->LoadBytes(graph, key, std::move(artifact));
}

absl::StatusOr<Compiled> Client::Compile(const v1::Graph& graph, const ProgressCallback& progress,
                                         absl::Duration timeout) {
  absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(Digest key, impl_->Key(graph, false));
  if (auto program = FindProgram(key)) return Compiled{std::move(program), "local", key.ToHex()};
  KILN_ASSIGN_OR_RETURN(ArtifactBytes artifact,
                        impl_->CompileBytes(graph, key, start, progress, timeout));
  return impl_->LoadBytes(graph, key, std::move(artifact));
}

absl::StatusOr<ArtifactBytes> Client::CompileArtifact(const v1::Graph& graph,
                                                      const ProgressCallback& progress) {
  absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(Digest key, impl_->Key(graph, false));
  return impl_->CompileBytes(graph, key, start, progress, absl::ZeroDuration());
}

absl::StatusOr<v1::Activity> Client::GetActivity(int recent, int slowest, absl::Duration timeout) {
  return impl_->remote.GetActivity(recent, slowest,
                                   timeout > absl::ZeroDuration() ? timeout : impl_->timeout);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo() {
  return impl_->remote.GetServerInfo(impl_->timeout);
}

absl::StatusOr<v1::ListCacheResponse> Client::ListCache(absl::string_view kind, int limit) {
  return impl_->remote.ListCache(kind, limit, impl_->timeout);
}

absl::StatusOr<v1::VerifyCacheResponse> Client::VerifyCache() {
  return impl_->remote.VerifyCache(impl_->timeout);
}

absl::StatusOr<v1::ExplainMissResponse> Client::ExplainMiss(const v1::Graph& graph) {
  v1::ExplainMissRequest request;
  *request.mutable_graph() = graph;
  *request.mutable_device() = impl_->device;
  *request.mutable_options() = impl_->options;
  return impl_->remote.ExplainMiss(request, impl_->timeout);
}

absl::StatusOr<int64_t> Client::ClearCache(absl::string_view kind) {
  return impl_->remote.ClearCache(kind, impl_->timeout);
}

absl::StatusOr<int64_t> Client::PinCache(absl::string_view key_prefix, bool pinned) {
  return impl_->remote.PinCache(key_prefix, pinned, impl_->timeout);
}

absl::StatusOr<int64_t> Client::RemoveCache(absl::string_view key_prefix) {
  return impl_->remote.RemoveCache(key_prefix, impl_->timeout);
}

absl::Status Client::ExportCache(
    const v1::ExportCacheRequest& request,
    const std::function<absl::Status(const v1::CacheRecord&)>& on_record) {
  return impl_->remote.ExportCache(request, on_record, impl_->timeout);
}

absl::StatusOr<v1::ImportCacheResponse> Client::ImportCache(
    const std::function<bool(v1::CacheRecord&)>& next) {
  return impl_->remote.ImportCache(next, impl_->timeout);
}

absl::Status Client::Interpret(
    const v1::InterpretRequest& request,
    const std::function<absl::Status(const v1::InterpretEvent&)>& on_event) {
  return impl_->remote.Interpret(request, on_event, impl_->timeout);
}

const v1::Device& Client::device() const {
  return impl_->device;
}
const v1::CompileOptions& Client::compile_options() const {
  return impl_->options;
}
const std::string& Client::server() const {
  return impl_->remote.server();
}

}  // namespace kiln
