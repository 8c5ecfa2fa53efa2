// Kiln for C++: compile a tensor graph through a Kiln server and run it here.
//
//   absl::StatusOr<std::unique_ptr<kiln::Client>> client = kiln::Client::Create({});
//   absl::StatusOr<kiln::Graph> graph = kiln::LoadGraph("bert.kgraph");
//   absl::StatusOr<kiln::Compiled> compiled = (*client)->Compile(*graph);
//   absl::StatusOr<kiln::Outputs> outputs = compiled->program->Run(inputs);
//
// client/examples/bert.cc is a whole program; find_package(Kiln) and the target Kiln::client build
// it. It takes Abseil and nothing else: types of kiln::v1 are for callers that have Kiln's protobuf
// messages, and what names them is of no use to others. Errors carry kiln.v1.ErrorDetail where the
// server or the loader gave one. Nothing throws. Clients and programs are thread-safe. Tensors are
// described by the plain structs of kiln.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kiln/kiln.h"

namespace kiln {
namespace v1 {
class Activity;
class Artifact;
class CacheRecord;
class CompileOptions;
class Device;
class DeviceTimes;
class ExportCacheRequest;
class ExplainMissRequest;
class ExplainMissResponse;
class Graph;
class ImportCacheResponse;
class InterpretEvent;
class InterpretRequest;
class ListCacheResponse;
class ReportRunRequest;
class ServerInfo;
class VerifyCacheResponse;
}  // namespace v1

namespace runtime {
class LoadedProgram;
}  // namespace runtime
class ProgramInfo;
class RunReport;

// A graph to compile. Copies share it; immutable.
class KILN_EXPORT Graph {
 public:
  // The bytes of a .kgraph file: the serialized message. INVALID_ARGUMENT for others.
  static absl::StatusOr<Graph> Parse(absl::string_view bytes);
  explicit Graph(std::shared_ptr<const v1::Graph> message) : message_(std::move(message)) {}

  size_t num_inputs() const;
  // Number `which` of the names of an input: 0 is the graph's own ("arg3_1"), then come those of
  // its module, of a parameter or buffer ("encoder.weight") or of an argument; "" past the last.
  absl::string_view input_name(size_t input, size_t which) const;

  // So that a Graph is taken wherever the message is.
  operator const v1::Graph&() const { return *message_; }  // NOLINT(google-explicit-constructor)

 private:
  std::shared_ptr<const v1::Graph> message_;
};

struct ClientOptions {
  std::string server;  // "HOST:PORT" or "https://HOST:PORT", or several, comma-separated; empty:
                       // $KILN_SERVER, else the user's own kilnd, which is started where it
                       // does not run (client/README.md)
  absl::Duration timeout = absl::Seconds(120);  // of a call with all its retries
  int threads = 0;                              // 0: one a physical core; in no key
  std::vector<std::string> libraries;           // what library steps can call: "torch"
  std::string debug_dir;                        // empty: $KILN_DEBUG_DIR, else no such files
  std::string target;                           // "cpp", "ptx", "null"; empty: cpp
  std::string arch;                             // of the target; empty or "native": this machine's
  int optimization_level = 0;                   // 0: the compiler's default
  bool disable_fusion = false;
  bool fast_math = false;
  int64_t prepare_memory = 0;  // bytes that one program may prepare (kiln_program_prepare); 0: none
  bool autotune = false;       // time kernels' schedules here, where no client has, in first runs
  bool debug = false;          // ask for IR, sources and decisions; implied by debug_dir

  bool fail_on_miss = false;  // never compile: a miss is an error (IsCacheMiss); or
                              // KILN_FAIL_ON_MISS=1
  std::string local_cache;    // "DIR" or "DIR:SIZE": keep artifacts on this machine's disk;
                              // $KILN_LOCAL_CACHE, else nowhere
  std::string tenant;         // whose share of the server; $KILN_TENANT
  std::string priority;       // of compiles: "interactive" or "warmup"; $KILN_PRIORITY

  // Security; client/README.md. Empty ones come from the environment.
  std::string tls_ca;         // PEM file: who vouches for servers; $KILN_TLS_CA, else the system's
  std::string tls_cert;       // PEM file: this client's certificate; $KILN_TLS_CERT
  std::string tls_key;        // PEM file: its key; $KILN_TLS_KEY
  std::string token;          // $KILN_TOKEN
  std::string token_file;     // read again while the client lives; $KILN_TOKEN_FILE
  std::string public_key;     // "ed25519:...", comma-separated: whose artifacts to load;
                              // $KILN_PUBLIC_KEY, else those known from the first time
  std::string known_servers;  // file; $KILN_KNOWN_SERVERS, else ~/.config/kiln/known_servers
};

// What a compile did so far; the same again, a few times a second, where nothing else can be said.
// A return value of false cancels it.
struct CompileProgress {
  std::string stage;  // empty before the first
  int kernels_done = 0;
  int kernels_total = 0;
  int kernels_cached = 0;
};
using ProgressCallback = std::function<bool(const CompileProgress&)>;

// Outputs of one run, and the memory that the run allocated for them.
class KILN_EXPORT Outputs {
 public:
  Outputs() = default;
  explicit Outputs(size_t count) : outputs_(count) {}
  ~Outputs() { Release(); }
  Outputs(Outputs&& other) noexcept : outputs_(std::move(other.outputs_)) {
    other.outputs_.clear();
  }
  Outputs& operator=(Outputs&& other) noexcept {
    if (this != &other) {
      Release();
      outputs_ = std::move(other.outputs_);
      other.outputs_.clear();
    }
    return *this;
  }

  size_t size() const { return outputs_.size(); }
  const kiln_output& operator[](size_t i) const { return outputs_[i]; }
  absl::Span<kiln_output> span() { return absl::MakeSpan(outputs_); }

 private:
  void Release() { kiln_outputs_release(outputs_.data(), outputs_.size()); }
  std::vector<kiln_output> outputs_;
};

// A loaded artifact. Immutable; runs may overlap.
class KILN_EXPORT Program {
 public:
  // Bytes of an artifact file. DATA_LOSS for a damaged one; FAILED_PRECONDITION for one that this
  // machine cannot run.
  static absl::StatusOr<std::shared_ptr<const Program>> Load(absl::string_view artifact_file,
                                                             int threads);
  // `report`, which may be null, is told of runs.
  explicit Program(std::unique_ptr<runtime::LoadedProgram> loaded,
                   std::unique_ptr<RunReport> report = nullptr);
  ~Program();

  // As kiln_program_run; `options` may be null.
  absl::Status Run(absl::Span<const kiln_tensor> inputs, absl::Span<kiln_output> outputs,
                   const kiln_run_options* options) const;
  absl::StatusOr<Outputs> Run(absl::Span<const kiln_tensor> inputs) const;

  // As kiln_program_input and kiln_program_output describe them.
  size_t num_inputs() const;
  size_t num_outputs() const;
  absl::StatusOr<kiln_value_info> Input(size_t index) const;
  absl::StatusOr<kiln_value_info> Output(size_t index) const;

  // What the last run did on a GCU, for people: its profile, launches and their simulated time;
  // "" for other devices.
  std::string LastRun() const;
  // The same, kernel by kernel.
  v1::DeviceTimes LastDeviceTimes() const;

  // Header, program and debug part; the machine code is left out.
  const v1::Artifact& artifact() const;
  const runtime::LoadedProgram& loaded() const { return *loaded_; }
  const ProgramInfo& info() const { return *info_; }

 private:
  std::unique_ptr<runtime::LoadedProgram> loaded_;
  std::unique_ptr<ProgramInfo> info_;
  std::unique_ptr<RunReport> report_;
};

// Tensors of .safetensors files, mapped into memory. Not for several threads at once.
class KILN_EXPORT Weights {
 public:
  // NOT_FOUND; INVALID_ARGUMENT for a file that is not sound, with what is wrong with it, and for a
  // name in two of them. The files must not be made shorter while this lives.
  static absl::StatusOr<std::unique_ptr<Weights>> Load(absl::Span<const std::string> paths);
  ~Weights();

  size_t size() const;                         // tensors
  absl::string_view name(size_t index) const;  // zero-terminated; empty past the last

  struct Binding {
    std::vector<bool> given;          // for each input, whether the files have it
    std::vector<std::string> unused;  // tensors of the files that are no input of the graph
  };
  // `inputs` are all of the graph's inputs in order. Describes those that the files have under one
  // of the input's names, and leaves the others as they are. They point into the files' memory
  // (what a run writes there stays in this process), or into a copy where the graph has another
  // layout or the file does not align it; both live as long as this. INVALID_ARGUMENT, and no input
  // is changed, where dtype or sizes differ, or where the files have two different tensors for one
  // input.
  absl::StatusOr<Binding> Bind(const v1::Graph& graph, absl::Span<kiln_tensor> inputs);

 private:
  struct Impl;
  explicit Weights(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Compiled {
  std::shared_ptr<const Program> program;
  const char* source = "";  // "local" (this process), "local_disk" (the local cache), "memory",
                            // "disk", "compiled" or "coalesced"
  std::string key;          // hex
  double fetch_ms = 0;
  double compile_ms = 0;
  double load_ms = 0;
  int64_t artifact_bytes = 0;
  int retries = 0;  // calls to servers after the first
};

// An artifact as the server sent it, digest checked, not loaded.
struct ArtifactBytes {
  std::string bytes;   // serialized kiln.v1.Artifact
  std::string source;  // "memory", "disk", "compiled" or "coalesced"
  std::string key;     // hex
  double fetch_ms = 0;
  double compile_ms = 0;
};

class KILN_EXPORT Client {
 public:
  // Does not connect. INVALID_ARGUMENT for impossible options.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();

  // The program of `graph` from this process, the local cache or the server's; NOT_FOUND on a miss.
  absl::StatusOr<Compiled> Fetch(const v1::Graph& graph);
  // As Fetch, and on a miss sends the graph and waits; with fail_on_miss IsCacheMiss instead.
  // `timeout` of zero takes the client's. Of several servers each graph has one that it is asked
  // first; the next follows where that is away, and a wait that a lost connection ended is taken up
  // again. UNAVAILABLE where none can be reached.
  absl::StatusOr<Compiled> Compile(const v1::Graph& graph,
                                   const ProgressCallback& progress = nullptr,
                                   absl::Duration timeout = absl::ZeroDuration());
  // The same without loading, for artifacts of other devices and for files.
  absl::StatusOr<ArtifactBytes> CompileArtifact(const v1::Graph& graph,
                                                const ProgressCallback& progress = nullptr);

  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  // What the server does now and did lately, and how many of its last and slowest compiles; zeros
  // take the server's defaults and the client's timeout.
  absl::StatusOr<v1::Activity> GetActivity(int recent, int slowest,
                                           absl::Duration timeout = absl::ZeroDuration());
  // What Program::LastDeviceTimes says of a run at the hints of its graph's symbols, for the
  // server's page. `key_hex`: the artifact's. NOT_FOUND where the server does not remember its
  // compile. Waits five seconds at most.
  absl::Status ReportRun(absl::string_view key_hex, const v1::DeviceTimes& times);
  // Empty `kind`: both. `limit` of zero: the server's default.
  absl::StatusOr<v1::ListCacheResponse> ListCache(absl::string_view kind, int limit);
  absl::StatusOr<v1::VerifyCacheResponse> VerifyCache();
  absl::StatusOr<int64_t> ClearCache(absl::string_view kind);
  // Entries whose hex key begins with the prefix, of four digits or more; NOT_FOUND where there is
  // none. How many were changed.
  absl::StatusOr<int64_t> PinCache(absl::string_view key_prefix, bool pinned);
  absl::StatusOr<int64_t> RemoveCache(absl::string_view key_prefix);
  // Calls `on_record` with the entries' records in their order.
  absl::Status ExportCache(const v1::ExportCacheRequest& request,
                           const std::function<absl::Status(const v1::CacheRecord&)>& on_record);
  // `next` fills the next record, or returns false where there are no more.
  absl::StatusOr<v1::ImportCacheResponse> ImportCache(
      const std::function<bool(v1::CacheRecord&)>& next);
  // In what the key of `graph` differs from the nearest that the server has.
  absl::StatusOr<v1::ExplainMissResponse> ExplainMiss(const v1::Graph& graph);
  absl::Status Interpret(const v1::InterpretRequest& request,
                         const std::function<absl::Status(const v1::InterpretEvent&)>& on_event);

  const v1::Device& device() const;
  const v1::CompileOptions& compile_options() const;
  // As given; several are comma-separated. Calls below GetServerInfo ask the first.
  const std::string& server() const;

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads a .kgraph file: the serialized message. NOT_FOUND, or INVALID_ARGUMENT for another file.
KILN_EXPORT absl::StatusOr<Graph> LoadGraph(const std::string& path);

// Artifact files: "KILNART1", SHA-256 of the rest, the serialized Artifact.
KILN_EXPORT std::string ToArtifactFile(absl::string_view artifact_bytes);
KILN_EXPORT bool IsArtifactFile(absl::string_view data);
// The serialized Artifact in it; DATA_LOSS where the digest does not match.
KILN_EXPORT absl::StatusOr<absl::string_view> FromArtifactFile(absl::string_view data);

// Whether a compile ended because there was no artifact, and fail_on_miss.
KILN_EXPORT bool IsCacheMiss(const absl::Status& status);

// Drops every program kept for "local" answers.
KILN_EXPORT void ForgetPrograms();

}  // namespace kiln
