// The server, over gRPC: one call a function, errors with their details.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kiln/client.h"

namespace kiln {

struct RemoteArtifact {
  std::string bytes;   // digest checked
  std::string source;  // as the server says
};

// Thread-safe. Connects with the first call and keeps the connection. A server that cannot be
// reached is UNAVAILABLE at once, one that does not answer DEADLINE_EXCEEDED after the timeout.
class Remote {
 public:
  explicit Remote(std::string server);
  ~Remote();

  absl::StatusOr<RemoteArtifact> Fetch(absl::string_view key, absl::Duration timeout);
  absl::StatusOr<RemoteArtifact> Compile(const v1::Graph& graph, const v1::Device& device,
                                         const v1::CompileOptions& options,
                                         const ProgressCallback& progress, absl::Duration timeout);
  absl::StatusOr<v1::ServerInfo> GetServerInfo(absl::Duration timeout);
  absl::Status Interpret(const v1::InterpretRequest& request,
                         const std::function<absl::Status(const v1::InterpretEvent&)>& on_event,
                         absl::Duration timeout);
  absl::StatusOr<v1::ListCacheResponse> ListCache(absl::string_view kind, int limit,
                                                  absl::Duration timeout);
  absl::StatusOr<v1::VerifyCacheResponse> VerifyCache(absl::Duration timeout);
  absl::StatusOr<int64_t> ClearCache(absl::string_view kind, absl::Duration timeout);

  const std::string& server() const { return server_; }

 private:
  struct Connection;
  std::string server_;
  std::unique_ptr<Connection> connection_;
};

// What gRPC connects to for "HOST:PORT": an address that needs no resolver where HOST is one.
// INVALID_ARGUMENT unless it is HOST:PORT with a port of 1 to 65535, or a gRPC URI ("unix:...").
absl::StatusOr<std::string> GrpcTarget(absl::string_view server);

}  // namespace kiln
