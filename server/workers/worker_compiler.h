// The compiler as a worker calls it, and the kernels that come with it. The one seam at which a
// test's server gets a compiler that misbehaves; kilnd itself links
// server/workers/worker_compiler.cc and has no way to misbehave.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "compiler/compiler.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class CompileKernelResponse;
class LinkRequest;
class LinkResponse;
class PlanRequest;
class PlanResponse;
}  // namespace v1

namespace server {

// Each as in compiler/compiler.h, on the worker's only thread.
struct WorkerCompiler {
  absl::StatusOr<v1::PlanResponse> (*plan)(const v1::PlanRequest&);
  absl::StatusOr<v1::CompileKernelResponse> (*compile_kernel)(const v1::CompileKernelRequest&);
  absl::StatusOr<v1::LinkResponse> (*link)(const v1::LinkRequest&);
  std::vector<KernelOfBuild> (*kernels_of_build)();  // in the server
};

WorkerCompiler MakeWorkerCompiler();

}  // namespace server
}  // namespace kiln
