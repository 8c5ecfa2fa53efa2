// CompileService over gRPC's callback API: adapters only. Each call parses, hands its work to the
// executor or the broker, and answers when that calls back; nothing here compiles or waits.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cache/store.h"
#include "server/artifact_signer.h"
#include "server/auth.h"
#include "server/broker.h"
#include "server/executor.h"
#include "server/metrics.h"
#include "server/worker_backend.h"

namespace grpc {
class Service;
}

namespace kiln {
namespace v1 {
class Graph;
}

namespace server {

inline constexpr int kMaxReceiveBytes = 64 << 20;

struct ServiceContext {
  cache::Store& store;    // every tier, metered
  cache::Store& durable;  // the verifying disk tier, for VerifyCache
  Broker& broker;
  WorkerBackend& workers;  // for Interpret
  Executor& executor;
  Metrics& metrics;
  Authenticator& authenticator;
  ArtifactSigner& signer;
  std::string version;
  std::string compiler_build;
  std::string toolchain;
  int worker_count = 0;
  std::function<bool()> draining;
  // A quick look before a graph is hashed, copied or queued.
  std::function<absl::Status(const v1::Graph&)> check_graph;
};

// `context` and what it refers to must outlive the result.
std::unique_ptr<grpc::Service> MakeCompileService(const ServiceContext* context);

}  // namespace server
}  // namespace kiln
