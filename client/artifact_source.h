// Where a client's artifacts come from: this process, this machine's disk, a server's cache, a
// server's compile; in that order.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/endpoints.h"
#include "client/local_cache.h"
#include "client/patience.h"
#include "client/trust.h"
#include "kiln/client.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "proto/base/digest.h"

namespace kiln {

// Sources that no server names.
inline constexpr char kFromProcess[] = "local";
inline constexpr char kFromLocalCache[] = "local_disk";

struct Obtained {
  std::shared_ptr<const Program> program;  // the process has it; else null, and `bytes` has it all
  std::string bytes;                       // digest and signature checked
  std::string source;                      // kFromProcess, kFromLocalCache, or as the server says
  Digest key;
  Digest digest;
  std::string signature;
  Endpoint* endpoint = nullptr;  // who was asked; null where no server answered
  double fetch_ms = 0;
  double compile_ms = 0;
  int retries = 0;
};

// Thread-safe.
class ArtifactSource {
 public:
  // Reads options and environment. INVALID_ARGUMENT for impossible ones.
  static absl::StatusOr<std::unique_ptr<ArtifactSource>> Create(const ClientOptions& options,
                                                                v1::Device device,
                                                                v1::CompileOptions compile_options);

  // What `progress` says to a compile of which nothing is known yet; null where it is.
  static Patience PatienceOf(const ProgressCallback& progress);

  struct Request {
    const v1::Graph& graph;
    bool compile = false;  // on a miss, unless fail_on_miss
    bool kept = true;      // look into process and disk
    bool disk = true;      // look onto the disk
    const ProgressCallback& progress;
    absl::Time deadline;                       // of everything
    Patience patience = PatienceOf(progress);  // of everything but the server's work
  };
  // NOT_FOUND on a miss; IsCacheMiss where a compile was asked for and fail_on_miss forbids it.
  // Where no server answers, what is kept under the compiler that the servers had last is good.
  absl::StatusOr<Obtained> Get(const Request& request);

  // The key that `endpoint` gives the graph now. Asks it.
  absl::StatusOr<Digest> KeyNow(const v1::Graph& graph, Endpoint& endpoint, absl::Time deadline,
                                const Patience& patience);

  // Onto the disk, where there is a local cache, under the key that the artifact itself bears. A
  // failure is logged.
  void Keep(const Digest& key, const Obtained& artifact);
  void ForgetKept(const Digest& key);

  absl::StatusOr<v1::ServerInfo> GetServerInfo(absl::Time deadline);
  Endpoints& endpoints() { return *endpoints_; }
  const v1::Device& device() const { return device_; }
  const v1::CompileOptions& compile_options() const { return compile_options_; }

 private:
  ArtifactSource() = default;
  // For the client's target.
  absl::StatusOr<std::string> CompilerBuild(Endpoint& endpoint, bool refresh, absl::Time deadline,
                                            const Patience& patience);
  // As known without asking; empty where it is not.
  std::string KnownBuild(Endpoint& endpoint);
  bool FindKept(const Digest& key, bool disk, Obtained& out);
  absl::Status Attempt(const Request& request, Endpoint& endpoint, Obtained& out);
  absl::Status Fetch(const Request& request, Endpoint& endpoint, Obtained& out);
  absl::Status Compile(const Request& request, Endpoint& endpoint, Obtained& out);
  absl::Status Take(const Request& request, Endpoint& endpoint, RemoteArtifact artifact,
                    Obtained& out);
  absl::Status Miss(const v1::Graph& graph, const Digest& key) const;

  std::shared_ptr<Trust> trust_;
  std::unique_ptr<Endpoints> endpoints_;
  std::unique_ptr<LocalCache> local_;  // may be null
  v1::Device device_;
  v1::CompileOptions compile_options_;
  bool fail_on_miss_ = false;
};

// What is given, else KILN_TENANT and KILN_PRIORITY.
CallHeaders HeadersOrVariables(const std::string& tenant, const std::string& priority);

// `given`, else the environment's variable, else "".
std::string OptionOrVariable(const std::string& given, const char* variable);

}  // namespace kiln
