// Calls of CompileService, streams put together and checked.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile_service.grpc.pb.h"
#include "kiln/v1/error.pb.h"

namespace kiln::integration {

struct Answer {
  grpc::Status status;
  v1::ErrorDetail detail;  // of "kiln-error-bin"; empty where there was none
  std::string bytes;       // the serialized artifact; its digest was compared
  v1::Artifact artifact;   // parsed
  std::string source;      // "memory", "disk", "compiled", "coalesced"
  int chunks = 0;
  int progress_events = 0;

  bool ok() const { return status.ok(); }
};

// Called for each progress event, on the calling thread; may cancel the call.
using OnProgress = std::function<void(const v1::Progress&, grpc::ClientContext&)>;

Answer Compile(v1::CompileService::Stub& stub, const v1::CompileRequest& request,
               const OnProgress& on_progress = nullptr,
               absl::Duration deadline = absl::Seconds(120));
// `key`: hex, as in an artifact's header.
Answer Fetch(v1::CompileService::Stub& stub, absl::string_view key_hex);
v1::VerifyCacheResponse VerifyCache(v1::CompileService::Stub& stub);
v1::ServerInfo GetServerInfo(v1::CompileService::Stub& stub);

// "INVALID_ARGUMENT: ..." for failure messages.
std::string Text(const grpc::Status& status);

}  // namespace kiln::integration
