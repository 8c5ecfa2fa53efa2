#include "kiln/client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/artifact_source.h"
#include "client/debug_dir.h"
#include "client/device.h"
#include "client/launches_text.h"
#include "client/loader.h"
#include "client/program_cache.h"
#include "client/program_info.h"
#include "client/remote.h"
#include "client/run_report.h"
#include "client/runtime/executor.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/digest.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr int kMostThreads = 1024;
constexpr absl::Duration kReportTimeout = absl::Seconds(5);

double MillisecondsSince(absl::Time start) {
  return absl::ToDoubleMilliseconds(absl::Now() - start);
}

// Threads that wait for each other on one processor cost many times what they save.
int CapThreads(int threads) {
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  if (processors == 0 || threads <= processors) return threads;
  Log(LogLevel::kWarning, "threads is above what this process has of processors",
      {{"threads", threads}, {"used", processors}});
  return processors;
}

// A string with static storage for each source that there is.
const char* StaticSource(absl::string_view source) {
  for (const char* known :
       {kFromProcess, kFromLocalCache, "memory", "disk", "compiled", "coalesced"}) {
    if (source == known) return known;
  }
  return "server";
}

}  // namespace

// ---- Program

Program::Program(std::unique_ptr<runtime::LoadedProgram> loaded, std::unique_ptr<RunReport> report)
    : loaded_(std::move(loaded)),
      info_(std::make_unique<ProgramInfo>(*loaded_)),
      report_(std::move(report)) {}
Program::~Program() = default;

absl::StatusOr<std::shared_ptr<const Program>> Program::Load(absl::string_view artifact_file,
                                                             int threads) {
  KILN_ASSIGN_OR_RETURN(absl::string_view bytes, FromArtifactFile(artifact_file));
  KILN_ASSIGN_OR_RETURN(auto loaded,
                        runtime::LoadedProgram::Load(bytes, nullptr, CapThreads(threads)));
  return std::make_shared<const Program>(std::move(loaded));
}

absl::Status Program::Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                          const kiln_run_options* options) const {
  KILN_RETURN_IF_ERROR(loaded_->executor().Run(inputs, outputs, options));
  if (report_ != nullptr) report_->Ran(loaded_->executor());
  return absl::OkStatus();
}

absl::StatusOr<Outputs> Program::Run(absl::Span<const kiln_tensor> inputs) const {
  Outputs outputs(static_cast<size_t>(artifact().program().outputs_size()));
  KILN_RETURN_IF_ERROR(Run(inputs, outputs.span(), nullptr));
  return outputs;
}

size_t Program::num_inputs() const {
  return info_->inputs().size();
}

size_t Program::num_outputs() const {
  return info_->outputs().size();
}

absl::StatusOr<kiln_value_info> Program::Input(size_t index) const {
  return ProgramInfo::At(info_->inputs(), index, "input");
}

absl::StatusOr<kiln_value_info> Program::Output(size_t index) const {
  return ProgramInfo::At(info_->outputs(), index, "output");
}

std::string Program::LastRun() const {
  const runtime::DeviceRun run = loaded_->executor().LastRun();
  if (run.device.empty()) return "";
  double microseconds = 0;
  for (const runtime::DeviceRun::Launch& launch : run.launches) microseconds += launch.microseconds;
  return absl::StrFormat("%s, %d %s, %.1f us", run.device, run.launches.size(),
                         run.launches.size() == 1 ? "launch" : "launches", microseconds);
}

v1::DeviceTimes Program::LastDeviceTimes() const {
  return TimesOf(loaded_->executor().LastRun());
}

const v1::Artifact& Program::artifact() const {
  return loaded_->artifact();
}

// ---- Client

struct Client::Impl {
  absl::StatusOr<Compiled> GetAndLoad(const v1::Graph& graph, bool compile,
                                      const ProgressCallback& progress, absl::Time deadline);
  absl::StatusOr<Compiled> Load(const ArtifactSource::Request& request, Obtained artifact);
  // Commands about one server's state are for the first of several.
  Remote& remote() const { return source->endpoints().at(0).remote; }

  std::unique_ptr<ArtifactSource> source;
  std::string servers;
  absl::Duration timeout;
  int threads = 0;
  std::string debug_dir;
};

absl::StatusOr<Compiled> Client::Impl::Load(const ArtifactSource::Request& request,
                                            Obtained artifact) {
  const v1::Graph& graph = request.graph;
  Compiled out;
  out.source = StaticSource(artifact.source);
  out.key = artifact.key.ToHex();
  out.fetch_ms = artifact.fetch_ms;
  out.compile_ms = artifact.compile_ms;
  out.retries = artifact.retries;
  if (artifact.program != nullptr) {
    out.program = std::move(artifact.program);
    return out;
  }
  const absl::Time start = absl::Now();
  KILN_ASSIGN_OR_RETURN(auto loaded, runtime::LoadedProgram::Load(artifact.bytes, &graph, threads));
  const std::string made_key = loaded->artifact().header().key();
  Digest kept_key = artifact.key;
  if (made_key != kept_key.ToHex()) {
    // The server may have been replaced by a newer one since it was asked for its compiler.
    if (artifact.endpoint != nullptr) {
      KILN_ASSIGN_OR_RETURN(
          kept_key, source->KeyNow(graph, *artifact.endpoint, request.deadline, request.patience));
    }
    if (made_key != kept_key.ToHex()) {
      return absl::DataLossError("the server answered with the artifact of another request");
    }
  }
  if (!debug_dir.empty()) {
    absl::Status written = WriteDebugFiles(debug_dir, graph, loaded->artifact());
    if (!written.ok()) Log(LogLevel::kWarning, written.message());
  }
  std::unique_ptr<RunReport> report;
  const bool has_choices = loaded->executor().choices().any();
  if (artifact.endpoint != nullptr && (has_choices || loaded->executor().TellsRuns())) {
    report = std::make_unique<RunReport>(artifact.endpoint->shared_from_this(), kept_key);
  }
  out.program = KeepProgram(kept_key, threads,
                            std::make_shared<const Program>(std::move(loaded), std::move(report)));
  out.key = kept_key.ToHex();
  out.load_ms = MillisecondsSince(start);
  out.artifact_bytes = static_cast<int64_t>(artifact.bytes.size());
  if (!has_choices) source->Keep(kept_key, artifact);  // else the server will know better
  Log(LogLevel::kInfo, "loaded",
      {{"graph", graph.name()},
       {"key", kept_key.ShortHex()},
       {"source", out.source},
       {"fetch_ms", absl::StrCat(out.fetch_ms)},
       {"compile_ms", absl::StrCat(out.compile_ms)},
       {"load_ms", absl::StrCat(out.load_ms)}});
  return out;
}

absl::StatusOr<Compiled> Client::Impl::GetAndLoad(const v1::Graph& graph, bool compile,
                                                  const ProgressCallback& progress,
                                                  absl::Time deadline) {
  ArtifactSource::Request request{
      .graph = graph, .compile = compile, .progress = progress, .deadline = deadline};
  KILN_ASSIGN_OR_RETURN(Obtained obtained, source->Get(request));
  const bool from_disk = obtained.source == kFromLocalCache;
  const Digest key = obtained.key;
  absl::StatusOr<Compiled> loaded = Load(request, std::move(obtained));
  if (loaded.ok() || !from_disk) return loaded;
  // What the disk has is whole but does not run here: a server may have better.
  Log(LogLevel::kWarning, "local cache: an entry is not used",
      {{"key", key.ShortHex()}, {"why", std::string(loaded.status().message())}});
  source->ForgetKept(key);
  request.disk = false;
  KILN_ASSIGN_OR_RETURN(obtained, source->Get(request));
  return Load(request, std::move(obtained));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  if (options.threads < 0 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; expected 0 to ", kMostThreads));
  }
  if (options.optimization_level < 0 || options.optimization_level > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimization level is ", options.optimization_level, "; expected 0 to 3"));
  }
  if (options.prepare_memory < 0) {
    return absl::InvalidArgumentError("prepare_memory is negative");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the timeout is not positive");
  }
  auto impl = std::make_unique<Impl>();
  impl->timeout = options.timeout;
  impl->debug_dir = OptionOrVariable(options.debug_dir, "KILN_DEBUG_DIR");
  KILN_ASSIGN_OR_RETURN(v1::Device device,
                        DescribeDevice(options.target, options.arch, CapThreads(options.threads)));
  for (const std::string& library : options.libraries) device.add_libraries(library);
  impl->threads = device.processors();
  v1::CompileOptions compile_options;
  compile_options.set_optimization_level(options.optimization_level);
  compile_options.set_disable_fusion(options.disable_fusion);
  compile_options.set_fast_math(options.fast_math);
  compile_options.set_prepare_memory(options.prepare_memory);
  compile_options.set_autotune(options.autotune);
  compile_options.set_debug(options.debug || !impl->debug_dir.empty());
  KILN_ASSIGN_OR_RETURN(
      impl->source, ArtifactSource::Create(options, std::move(device), std::move(compile_options)));
  impl->servers = absl::StrJoin(impl->source->endpoints().servers(), ",");
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<Compiled> Client::Fetch(const v1::Graph& graph) {
  return impl_->GetAndLoad(graph, false, nullptr, absl::Now() + impl_->timeout);
}

absl::StatusOr<Compiled> Client::Compile(const v1::Graph& graph, const ProgressCallback& progress,
                                         absl::Duration timeout) {
  return impl_->GetAndLoad(
      graph, true, progress,
      absl::Now() + (timeout > absl::ZeroDuration() ? timeout : impl_->timeout));
}

absl::StatusOr<ArtifactBytes> Client::CompileArtifact(const v1::Graph& graph,
                                                      const ProgressCallback& progress) {
  KILN_ASSIGN_OR_RETURN(Obtained obtained,
                        impl_->source->Get({.graph = graph,
                                            .compile = true,
                                            .kept = false,
                                            .progress = progress,
                                            .deadline = absl::Now() + impl_->timeout}));
  KILN_RETURN_IF_ERROR(runtime::CheckOfGraph(obtained.bytes, graph));
  ArtifactBytes out;
  out.bytes = std::move(obtained.bytes);
  out.source = std::move(obtained.source);
  out.key = obtained.key.ToHex();
  out.fetch_ms = obtained.fetch_ms;
  out.compile_ms = obtained.compile_ms;
  return out;
}

absl::StatusOr<v1::Activity> Client::GetActivity(int recent, int slowest, absl::Duration timeout) {
  return impl_->remote().GetActivity(recent, slowest,
                                     timeout > absl::ZeroDuration() ? timeout : impl_->timeout);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo() {
  return impl_->source->GetServerInfo(absl::Now() + impl_->timeout);
}

absl::StatusOr<v1::ListCacheResponse> Client::ListCache(absl::string_view kind, int limit) {
  return impl_->remote().ListCache(kind, limit, impl_->timeout);
}

absl::StatusOr<v1::VerifyCacheResponse> Client::VerifyCache() {
  return impl_->remote().VerifyCache(impl_->timeout);
}

absl::StatusOr<v1::ExplainMissResponse> Client::ExplainMiss(const v1::Graph& graph) {
  v1::ExplainMissRequest request;
  *request.mutable_graph() = graph;
  *request.mutable_device() = impl_->source->device();
  *request.mutable_options() = impl_->source->compile_options();
  return impl_->remote().ExplainMiss(request, impl_->timeout);
}

absl::StatusOr<int64_t> Client::ClearCache(absl::string_view kind) {
  return impl_->remote().ClearCache(kind, impl_->timeout);
}

absl::Status Client::ReportRun(absl::string_view key_hex, const v1::DeviceTimes& times) {
  KILN_ASSIGN_OR_RETURN(const Digest key, Digest::FromHex(key_hex));
  v1::ReportRunRequest request;
  request.set_key(std::string(key.view()));
  *request.mutable_times() = times;
  return impl_->remote().ReportRun(request, std::min(impl_->timeout, kReportTimeout));
}

absl::StatusOr<int64_t> Client::PinCache(absl::string_view key_prefix, bool pinned) {
  return impl_->remote().PinCache(key_prefix, pinned, impl_->timeout);
}

absl::StatusOr<int64_t> Client::RemoveCache(absl::string_view key_prefix) {
  return impl_->remote().RemoveCache(key_prefix, impl_->timeout);
}

absl::Status Client::ExportCache(
    const v1::ExportCacheRequest& request,
    const std::function<absl::Status(const v1::CacheRecord&)>& on_record) {
  return impl_->remote().ExportCache(request, on_record, impl_->timeout);
}

absl::StatusOr<v1::ImportCacheResponse> Client::ImportCache(
    const std::function<bool(v1::CacheRecord&)>& next) {
  return impl_->remote().ImportCache(next, impl_->timeout);
}

absl::Status Client::Interpret(
    const v1::InterpretRequest& request,
    const std::function<absl::Status(const v1::InterpretEvent&)>& on_event) {
  return impl_->remote().Interpret(request, on_event, impl_->timeout);
}

const v1::Device& Client::device() const {
  return impl_->source->device();
}
const v1::CompileOptions& Client::compile_options() const {
  return impl_->source->compile_options();
}
const std::string& Client::server() const {
  return impl_->servers;
}

}  // namespace kiln
