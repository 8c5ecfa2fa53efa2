// What the service's methods work with.
#pragma once

#include <functional>
#include <string>

#include "cache/store.h"
#include "proto/base/compiler_builds.h"
#include "server/calls/executor.h"
#include "server/jobs/admission.h"
#include "server/jobs/broker.h"
#include "server/jobs/choices.h"
#include "server/observe/activity.h"
#include "server/observe/metrics.h"
#include "server/observe/run_reports.h"
#include "server/security/artifact_signer.h"
#include "server/security/auth.h"
#include "server/workers/worker_backend.h"

namespace kiln {
namespace v1 {
class Activity;
class GetActivityRequest;
class Graph;
}  // namespace v1

namespace server {

struct ServiceContext {
  cache::Store& store;    // every tier, metered
  cache::Store& local;    // the same without the shared tier
  cache::Store* shared;   // for what `local` lacks; null where no tier is shared
  cache::Store& durable;  // the verifying disk tier, for VerifyCache
  Broker& broker;
  WorkerBackend& workers;  // for Interpret
  Executor& executor;      // for what takes no time beyond a read: hits never queue behind the rest
  Executor& background;    // for graphs to hash
  Executor& network;       // for what waits for the shared tier
  Executor& upkeep;        // for caches to walk, which may take minutes
  Admission& admission;
  Metrics& metrics;
  Authenticator& authenticator;
  ArtifactSigner& signer;
  std::string version;
  CompilerBuilds compiler_builds;
  std::string toolchain;  // of TARGET_CPP
  int worker_count = 0;
  std::function<bool()> draining;
  // A quick look before a graph is hashed, copied or queued.
  std::function<absl::Status(const v1::Graph&)> check_graph;
  ActivityLog& activity;
  RunReports& run_reports;
  Choices& choices;
  std::function<absl::Status(const v1::GetActivityRequest&, v1::Activity&)> report_activity;
  cache::PinningStore& pins;  // the disk tier
  cache::Store& memory;       // the fastest tier, not counted: asked on gRPC's own threads
};

}  // namespace server
}  // namespace kiln
