// The inside of a compile, for the web page: its graph, kernels, decisions, IR, sources. Normal
// compiles keep none of it. Who asks has the graph compiled once more with CompileOptions.debug, at
// warm-up priority: another key, but the same kernels, so that Clang has little to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/store.h"
#include "proto/base/compiler_builds.h"
#include "server/jobs/broker.h"
#include "server/observe/activity.h"
#include "server/observe/run_reports.h"

namespace kiln {
namespace v1 {
class Artifact;
class CompileDetailState;
}  // namespace v1

namespace server {

// Thread-safe. Keys are those of the compiles that people see, in hex.
class CompileDetails {
 public:
  // All must outlive it.
  CompileDetails(Broker* broker, cache::Store* store, ActivityLog* activity,
                 const RunReports* run_reports, CompilerBuilds compiler_builds);
  ~CompileDetails();
  CompileDetails(const CompileDetails&) = delete;
  CompileDetails& operator=(const CompileDetails&) = delete;

  // How far the details of `key` are; touches a disk. NOT_FOUND where no such compile is known.
  // With `start`, asks for them where nobody did; RESOURCE_EXHAUSTED where too many are being made.
  absl::Status Look(absl::string_view key, bool start, v1::CompileDetailState& out);

  // The artifact with its debug part. NOT_FOUND where it is not made.
  absl::StatusOr<std::shared_ptr<const v1::Artifact>> Artifact(absl::string_view key);

 private:
  struct State;

  absl::Status Start(const std::string& key, std::shared_ptr<const v1::CompileRequest> request);

  Broker& broker_;
  cache::Store& store_;
  ActivityLog& activity_;
  const RunReports& run_reports_;
  const CompilerBuilds compiler_builds_;
  const std::shared_ptr<State> state_;  // also of callbacks that come after the end
};

}  // namespace server
}  // namespace kiln
