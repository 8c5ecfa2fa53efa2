// The C interface over the C++ client.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/graph_inputs.h"
#include "client/loader.h"
#include "client/program_info.h"
#include "client/runtime/executor.h"
#include "client/runtime/memory.h"
#include "client/status_bridge.h"
#include "kiln/client.h"
#include "kiln/kiln.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/current_trace.h"
#include "proto/base/status_macros.h"

#ifndef KILN_VERSION
#error "the build gives KILN_VERSION"
#endif

struct kiln_client {
  std::unique_ptr<kiln::Client> client;
};

struct kiln_graph {
  kiln::v1::Graph graph;
};

struct kiln_weights {
  std::unique_ptr<kiln::Weights> weights;
};

struct kiln_program {
  explicit kiln_program(std::shared_ptr<const kiln::Program> p)
      : program(std::move(p)), info(program->info()) {}
  const std::shared_ptr<const kiln::Program> program;
  const kiln::ProgramInfo& info;
};

namespace {

using kiln::FromCStatus;
using kiln::ToCStatus;

constexpr int64_t kMostJsonBytes = int64_t{1} << 30;

absl::Status NullArgument(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is null"));
}

// Runs `body`, which returns absl::Status. What throws in the libraries below (out of memory) stops
// here: no exception crosses the C interface.
template <typename Body>
kiln_status* Guarded(const Body& body) {
  try {
    return ToCStatus(body());
  } catch (const std::bad_alloc&) {
    return ToCStatus(absl::ResourceExhaustedError("out of memory"));
  } catch (const std::exception& e) {
    return ToCStatus(absl::InternalError(e.what()));
  }
}

absl::Status ToBytes(const std::string& text, kiln_bytes* out) {
  char* data = static_cast<char*>(std::malloc(text.size() + 1));
  if (data == nullptr) return absl::ResourceExhaustedError("out of memory");
  std::memcpy(data, text.c_str(), text.size() + 1);
  *out = {data, text.size()};
  return absl::OkStatus();
}

absl::Status ToJson(const google::protobuf::Message& message, kiln_bytes* out) {
  KILN_ASSIGN_OR_RETURN(std::string text, kiln::MessageJson(message));
  return ToBytes(text, out);
}

// Reads a caller's struct that may be older (shorter) than ours.
template <typename T>
absl::StatusOr<T> ReadOptions(const T* given, const T& defaults, const char* name) {
  T out = defaults;
  if (given == nullptr) return out;
  if (given->struct_size < sizeof(size_t) || given->struct_size > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".struct_size is ", given->struct_size, "; use the _INIT macro"));
  }
  std::memcpy(static_cast<void*>(&out), given, std::min(sizeof(T), given->struct_size));
  out.struct_size = sizeof(T);
  return out;
}

// Writes as much of `from` as the caller's struct has room for.
template <typename T>
void WriteStruct(T from, T* to) {
  if (to == nullptr || to->struct_size < sizeof(size_t)) return;
  size_t size = std::min(sizeof(T), to->struct_size);
  from.struct_size = to->struct_size;
  std::memcpy(static_cast<void*>(to), &from, size);
}

kiln_compile_info DescribeCompile(const kiln::Compiled& compiled) {
  kiln_compile_info info = KILN_COMPILE_INFO_INIT;
  info.source = compiled.source;
  info.fetch_ms = compiled.fetch_ms;
  info.compile_ms = compiled.compile_ms;
  info.load_ms = compiled.load_ms;
  info.artifact_bytes = compiled.artifact_bytes;
  info.retries = compiled.retries;
  std::memcpy(info.key, compiled.key.c_str(), std::min<size_t>(compiled.key.size() + 1, 65));
  info.key[64] = '\0';
  absl::string_view source = compiled.source;
  if (source == "compiled" || source == "coalesced") {
    for (const auto& kernel : compiled.program->artifact().header().kernels()) {
      ++(kernel.cached() ? info.kernels_cached : info.kernels_compiled);
    }
  }
  return info;
}

absl::StatusOr<kiln::ClientOptions> ToClientOptions(const kiln_client_options* given) {
  KILN_ASSIGN_OR_RETURN(kiln_client_options in,
                        ReadOptions(given, KILN_CLIENT_OPTIONS_INIT, "options"));
  kiln::ClientOptions out;
  auto text = [](const char* s) { return std::string(s == nullptr ? "" : s); };
  out.server = text(in.server);
  if (in.timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
  if (in.timeout_ms > 0) out.timeout = absl::Milliseconds(in.timeout_ms);
  out.threads = in.threads;
  out.libraries = absl::StrSplit(text(in.libraries), ',', absl::SkipEmpty());
  out.debug_dir = text(in.debug_dir);
  out.debug = in.debug != 0;
  out.arch = text(in.arch);
  out.target = text(in.target);
  out.optimization_level = in.optimization_level;
  out.disable_fusion = in.disable_fusion != 0;
  out.fast_math = in.fast_math != 0;
  out.prepare_memory = in.prepare_memory;
  out.autotune = in.autotune != 0;
  out.tls_ca = text(in.tls_ca);
  out.tls_cert = text(in.tls_cert);
  out.tls_key = text(in.tls_key);
  out.token = text(in.token);
  out.token_file = text(in.token_file);
  out.public_key = text(in.public_key);
  out.known_servers = text(in.known_servers);
  out.fail_on_miss = in.fail_on_miss != 0;
  out.local_cache = text(in.local_cache);
  out.tenant = text(in.tenant);
  out.priority = text(in.priority);
  return out;
}

absl::Status CompileOrFetch(kiln_client* client, const kiln_graph* graph,
                            const kiln_compile_options* given, bool compile, kiln_program** program,
                            kiln_compile_info* info) {
  if (client == nullptr) return NullArgument("client");
  if (graph == nullptr) return NullArgument("graph");
  if (program == nullptr) return NullArgument("program");
  KILN_ASSIGN_OR_RETURN(kiln_compile_options options,
                        ReadOptions(given, KILN_COMPILE_OPTIONS_INIT, "options"));
  kiln::ProgressCallback progress;
  if (options.progress != nullptr) {
    progress = [&options](const kiln::CompileProgress& p) {
      return options.progress(options.user, p.stage.c_str(), p.kernels_done, p.kernels_total,
                              p.kernels_cached) == 0;
    };
  }
  absl::StatusOr<kiln::Compiled> compiled =
      compile
          ? client->client->Compile(graph->graph, progress,
                                    absl::Milliseconds(std::max<int64_t>(0, options.timeout_ms)))
          : client->client->Fetch(graph->graph);
  KILN_RETURN_IF_ERROR(compiled.status());
  auto made = std::make_unique<kiln_program>(compiled->program);
  WriteStruct(DescribeCompile(*compiled), info);
  *program = made.release();
  return absl::OkStatus();
}

}  // namespace

extern "C" {

const char* kiln_version(void) {
  return KILN_VERSION;
}

void kiln_bytes_free(kiln_bytes* bytes) {
  if (bytes == nullptr) return;
  std::free(bytes->data);
  *bytes = {nullptr, 0};
}

kiln_status* kiln_graph_parse(const void* data, size_t size, kiln_graph** graph) {
  return Guarded([&]() -> absl::Status {
    if (data == nullptr && size > 0) return NullArgument("data");
    if (graph == nullptr) return NullArgument("graph");
    auto made = std::make_unique<kiln_graph>();
    if (size > INT32_MAX || !made->graph.ParseFromArray(data, static_cast<int>(size))) {
      return absl::InvalidArgumentError("the bytes are no serialized graph");
    }
    *graph = made.release();
    return absl::OkStatus();
  });
}

kiln_status* kiln_graph_parse_json(const char* text, size_t size, kiln_graph** graph) {
  return Guarded([&]() -> absl::Status {
    if (text == nullptr) return NullArgument("text");
    if (graph == nullptr) return NullArgument("graph");
    if (size > kMostJsonBytes) return absl::InvalidArgumentError("the JSON text is too large");
    auto made = std::make_unique<kiln_graph>();
    auto status = google::protobuf::util::JsonStringToMessage(
        google::protobuf::StringPiece(text, size), &made->graph);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text is no graph in JSON: ", std::string(status.message())));
    }
    *graph = made.release();
    return absl::OkStatus();
  });
}

kiln_status* kiln_graph_load(const char* path, kiln_graph** graph) {
  return Guarded([&]() -> absl::Status {
    if (path == nullptr) return NullArgument("path");
    if (graph == nullptr) return NullArgument("graph");
    KILN_ASSIGN_OR_RETURN(const kiln::Graph loaded, kiln::LoadGraph(path));
    *graph = new kiln_graph{loaded};
    return absl::OkStatus();
  });
}

kiln_status* kiln_graph_serialize(const kiln_graph* graph, kiln_bytes* bytes) {
  return Guarded([&]() -> absl::Status {
    if (graph == nullptr) return NullArgument("graph");
    if (bytes == nullptr) return NullArgument("bytes");
    std::string out;
    if (!graph->graph.SerializeToString(&out)) {
      return absl::InvalidArgumentError("the graph is too large to serialize");
    }
    return ToBytes(out, bytes);
  });
}

kiln_status* kiln_graph_to_json(const kiln_graph* graph, kiln_bytes* text) {
  return Guarded([&]() -> absl::Status {
    if (graph == nullptr) return NullArgument("graph");
    return text == nullptr ? NullArgument("text") : ToJson(graph->graph, text);
  });
}

void kiln_graph_destroy(kiln_graph* graph) {
  delete graph;
}

size_t kiln_graph_num_inputs(const kiln_graph* graph) {
  return graph == nullptr ? 0 : static_cast<size_t>(graph->graph.inputs_size());
}

const char* kiln_graph_input_name(const kiln_graph* graph, size_t input, size_t which) {
  const std::string* name =
      graph == nullptr ? nullptr : kiln::InputName(graph->graph, input, which);
  return name == nullptr ? nullptr : name->c_str();
}

kiln_status* kiln_weights_load(const char* const* paths, size_t num_paths, kiln_weights** weights) {
  return Guarded([&]() -> absl::Status {
    if (paths == nullptr && num_paths > 0) return NullArgument("paths");
    if (weights == nullptr) return NullArgument("weights");
    std::vector<std::string> files;
    for (size_t i = 0; i < num_paths; ++i) {
      if (paths[i] == nullptr) return NullArgument("paths");
      files.emplace_back(paths[i]);
    }
    KILN_ASSIGN_OR_RETURN(auto loaded, kiln::Weights::Load(files));
    *weights = new kiln_weights{std::move(loaded)};
    return absl::OkStatus();
  });
}

void kiln_weights_destroy(kiln_weights* weights) {
  delete weights;
}

size_t kiln_weights_size(const kiln_weights* weights) {
  return weights == nullptr ? 0 : weights->weights->size();
}

const char* kiln_weights_name(const kiln_weights* weights, size_t index) {
  return index < kiln_weights_size(weights) ? weights->weights->name(index).data() : nullptr;
}

kiln_status* kiln_weights_bind(kiln_weights* weights, const kiln_graph* graph, kiln_tensor* inputs,
                               size_t num_inputs, size_t* bound) {
  return Guarded([&]() -> absl::Status {
    if (weights == nullptr) return NullArgument("weights");
    if (graph == nullptr) return NullArgument("graph");
    if (inputs == nullptr && num_inputs > 0) return NullArgument("inputs");
    KILN_ASSIGN_OR_RETURN(const kiln::Weights::Binding binding,
                          weights->weights->Bind(graph->graph, {inputs, num_inputs}));
    if (bound != nullptr) {
      *bound = static_cast<size_t>(std::count(binding.given.begin(), binding.given.end(), true));
    }
    return absl::OkStatus();
  });
}

kiln_status* kiln_client_create(const kiln_client_options* options, kiln_client** client) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    KILN_ASSIGN_OR_RETURN(kiln::ClientOptions converted, ToClientOptions(options));
    KILN_ASSIGN_OR_RETURN(auto made, kiln::Client::Create(converted));
    *client = new kiln_client{std::move(made)};
    return absl::OkStatus();
  });
}

void kiln_client_destroy(kiln_client* client) {
  delete client;
}

kiln_status* kiln_client_device_json(const kiln_client* client, kiln_bytes* text) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    return text == nullptr ? NullArgument("text") : ToJson(client->client->device(), text);
  });
}

kiln_status* kiln_client_server_info_json(kiln_client* client, kiln_bytes* text) {
  return Guarded([&]() -> absl::Status {
    if (client == nullptr) return NullArgument("client");
    if (text == nullptr) return NullArgument("text");
    KILN_ASSIGN_OR_RETURN(kiln::v1::ServerInfo info, client->client->GetServerInfo());
    return ToJson(info, text);
  });
}

kiln_status* kiln_client_fetch(kiln_client* client, const kiln_graph* graph,
                               const kiln_compile_options* options, kiln_program** program,
                               kiln_compile_info* info) {
  return Guarded([&] { return CompileOrFetch(client, graph, options, false, program, info); });
}

kiln_status* kiln_compile(kiln_client* client, const kiln_graph* graph,
                          const kiln_compile_options* options, kiln_program** program,
                          kiln_compile_info* info) {
  return Guarded([&] { return CompileOrFetch(client, graph, options, true, program, info); });
}

void kiln_forget_programs(void) {
  kiln::ForgetPrograms();
}

void kiln_set_thread_trace(const char* traceparent) {
  kiln::SetThreadTrace(traceparent == nullptr ? "" : traceparent);
}

kiln_status* kiln_program_load(const void* data, size_t size, int32_t threads,
                               kiln_program** program) {
  return Guarded([&]() -> absl::Status {
    if (data == nullptr) return NullArgument("data");
    if (program == nullptr) return NullArgument("program");
    KILN_ASSIGN_OR_RETURN(auto loaded,
                          kiln::Program::Load({static_cast<const char*>(data), size}, threads));
    *program = new kiln_program(std::move(loaded));
    return absl::OkStatus();
  });
}

void kiln_program_destroy(kiln_program* program) {
  delete program;
}

size_t kiln_program_num_inputs(const kiln_program* program) {
  return program == nullptr ? 0 : program->info.inputs().size();
}

size_t kiln_program_num_outputs(const kiln_program* program) {
  return program == nullptr ? 0 : program->info.outputs().size();
}

kiln_status* kiln_program_input(const kiln_program* program, size_t index, kiln_value_info* info) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr || info == nullptr) return NullArgument("program or info");
    KILN_ASSIGN_OR_RETURN(*info, kiln::ProgramInfo::At(program->info.inputs(), index, "input"));
    return absl::OkStatus();
  });
}

kiln_status* kiln_program_output(const kiln_program* program, size_t index, kiln_value_info* info) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr || info == nullptr) return NullArgument("program or info");
    KILN_ASSIGN_OR_RETURN(*info, kiln::ProgramInfo::At(program->info.outputs(), index, "output"));
    return absl::OkStatus();
  });
}

int32_t kiln_program_writes_input(const kiln_program* program, size_t index) {
  if (program == nullptr || index >= program->info.inputs().size()) return 0;
  return program->program->loaded().executor().WritesInput(index) ? 1 : 0;
}

void kiln_program_get_stats(const kiln_program* program, kiln_program_stats* stats) {
  if (program == nullptr) return;
  kiln_program_stats now = program->info.stats();
  now.launches_timed = program->program->loaded().executor().choices().timed();
  WriteStruct(now, stats);
}

const char* kiln_program_key(const kiln_program* program) {
  return program == nullptr ? "" : program->program->artifact().header().key().c_str();
}

const char* kiln_program_arch(const kiln_program* program) {
  return program == nullptr ? "" : program->program->artifact().header().arch().c_str();
}

kiln_status* kiln_program_library_step(const kiln_program* program, size_t index,
                                       kiln_library_info* info) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr || info == nullptr) return NullArgument("program or info");
    KILN_ASSIGN_OR_RETURN(
        *info, kiln::ProgramInfo::At(program->info.library_steps(), index, "library step"));
    return absl::OkStatus();
  });
}

size_t kiln_program_num_steps(const kiln_program* program) {
  return program == nullptr ? 0 : program->info.steps().size();
}

kiln_status* kiln_program_step(const kiln_program* program, size_t index, kiln_step_info* info) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr || info == nullptr) return NullArgument("program or info");
    KILN_ASSIGN_OR_RETURN(*info, kiln::ProgramInfo::At(program->info.steps(), index, "step"));
    return absl::OkStatus();
  });
}

kiln_status* kiln_program_describe_json(const kiln_program* program, kiln_bytes* text) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr) return NullArgument("program");
    return text == nullptr ? NullArgument("text") : ToJson(program->program->artifact(), text);
  });
}

kiln_status* kiln_program_run(const kiln_program* program, const kiln_tensor* inputs,
                              size_t num_inputs, kiln_output* outputs, size_t num_outputs,
                              const kiln_run_options* options) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr) return NullArgument("program");
    if (inputs == nullptr && num_inputs > 0) return NullArgument("inputs");
    if (outputs == nullptr && num_outputs > 0) return NullArgument("outputs");
    KILN_ASSIGN_OR_RETURN(kiln_run_options read,
                          ReadOptions(options, KILN_RUN_OPTIONS_INIT, "options"));
    return program->program->Run({inputs, num_inputs}, {outputs, num_outputs}, &read);
  });
}

kiln_status* kiln_program_prepare(const kiln_program* program, const kiln_tensor* inputs,
                                  size_t num_inputs, kiln_prepared** prepared) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr || prepared == nullptr) return NullArgument("program or prepared");
    if (inputs == nullptr && num_inputs > 0) return NullArgument("inputs");
    KILN_ASSIGN_OR_RETURN(
        std::unique_ptr<kiln_prepared> made,
        program->program->loaded().executor().PrepareWeights({inputs, num_inputs}));
    *prepared = made.release();
    return absl::OkStatus();
  });
}

void kiln_program_expect_prepare(const kiln_program* program) {
  if (program != nullptr) program->program->loaded().executor().ExpectPrepare();
}

kiln_status* kiln_program_check(const kiln_program* program) {
  return Guarded([&]() -> absl::Status {
    if (program == nullptr) return NullArgument("program");
    return program->program->loaded().executor().TakeError();
  });
}

int32_t kiln_program_prepares_input(const kiln_program* program, size_t index) {
  if (program == nullptr || index >= program->info.inputs().size()) return 0;
  return program->program->loaded().executor().PreparesInput(index) ? 1 : 0;
}

void kiln_prepared_destroy(kiln_prepared* prepared) {
  delete prepared;
}

void kiln_outputs_release(kiln_output* outputs, size_t num_outputs) {
  for (size_t i = 0; outputs != nullptr && i < num_outputs; ++i) {
    kiln::runtime::Unreference(static_cast<kiln::runtime::SharedMemory*>(outputs[i].owner));
    outputs[i].owner = nullptr;
    outputs[i].data = nullptr;
  }
}

}  // extern "C"
