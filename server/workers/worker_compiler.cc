#include "server/workers/worker_compiler.h"

#include "compiler/compiler.h"
#include "kiln/v1/worker.pb.h"

namespace kiln::server {

WorkerCompiler MakeWorkerCompiler() {
  return {
      .plan = [](const v1::PlanRequest& request) { return PlanGraph(request, {}); },
      .compile_kernel = &FindOrCompileKernel,
      .link = &LinkKernels,
      .kernels_of_build = &KernelsOfBuild,
  };
}

}  // namespace kiln::server
