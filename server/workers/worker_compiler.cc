#include "server/workers/worker_compiler.h"

#include <optional>
#include <string>

#include "compiler/compiler.h"
#include "compiler/kernels_ahead.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/digest.h"
#include "proto/base/status_macros.h"

namespace kiln::server {

namespace {

absl::StatusOr<v1::CompileKernelResponse> FindOrCompile(const v1::CompileKernelRequest& request) {
  KILN_ASSIGN_OR_RETURN(const Digest key, KernelKeyOf(request));
  const std::optional<absl::string_view> object = FindKernelAhead(KernelsAhead(), key);
  if (!object) return CompileKernel(request);
  v1::CompileKernelResponse response;
  response.set_object(std::string(*object));
  return response;
}

}  // namespace

WorkerCompiler MakeWorkerCompiler() {
  return {
      .plan = [](const v1::PlanRequest& request) { return PlanGraph(request, {}); },
      .compile_kernel = &FindOrCompile,
      .link = &LinkKernels,
  };
}

}  // namespace kiln::server
