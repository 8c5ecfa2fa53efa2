// One compile from graph to stored artifact: the server's story, one line a step.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/store.h"
#include "proto/base/compiler_builds.h"
#include "proto/base/trace_context.h"
#include "server/jobs/choices.h"
#include "server/jobs/job_control.h"
#include "server/jobs/kernel_compiler.h"
#include "server/observe/job_observer.h"
#include "server/observe/metrics.h"
#include "server/workers/worker_backend.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class CompileRequest;
class Progress;
}  // namespace v1

namespace server {

struct CompileJobInput {
  int64_t number = 0;  // jobs are numbered as they arrive
  int64_t order = 0;   // and again as they start; see WorkerTask::job
  Digest key;
  std::shared_ptr<const v1::CompileRequest> request;
  TraceContext trace;  // the job's span, the parent of its stages'
};

// The key of what a worker answers to the request (compiler/compiler.h): the server's own word for
// it. A worker that plans one client's hostile graph cannot name another client's kernel.
using KernelKeyFunction =
    std::function<absl::StatusOr<Digest>(const v1::CompileKernelRequest& request)>;

struct CompileJobContext {
  WorkerBackend& workers;
  KernelCompiler& kernels;
  cache::Store& store;
  cache::Store& durable;  // the disk tier, for what nobody waits for
  Metrics& metrics;
  CompilerBuilds compiler_builds;
  KernelKeyFunction kernel_key;
  JobObserver* observer = &NoJobObserver();  // never null
  Choices* choices = nullptr;                // never null where an option asks for alternatives
  WorkerBackend* disassemblers = nullptr;    // of cubins, for people; null where there are none
};

struct CompileJobOutcome {
  absl::StatusOr<cache::EntryPtr> artifact;
  int worker_deaths = 0;
  int kernels_total = 0;
  int kernels_cached = 0;
  std::string stages;  // "plan=12.3ms compile=80.1ms ...", for the log
};

using ProgressSink = std::function<void(const v1::Progress&)>;

// Blocks until the job is done or `control` stops it. `progress` is called on any thread, also
// shortly after a stopped job has returned.
CompileJobOutcome RunCompileJob(const CompileJobContext& context, const CompileJobInput& input,
                                const std::shared_ptr<JobControl>& control, ProgressSink progress);

}  // namespace server
}  // namespace kiln
