// How a worker makes a process for each task, and how the server asks for one.
//
// The worker (the warm process) has the toolchain started and preludes parsed, and never touches
// what a client sent. A task's process is forked from it, as a child of the server: the server
// kills and reaps it as it does the worker, and it ends with the server. Nothing that a task does
// to its process, its memory or its files is there for the next one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/workers/frame.h"
#include "server/workers/worker_process.h"

namespace kiln {
namespace v1 {
class CompileKernelRequest;
class StartTask;
}  // namespace v1

namespace server {

// In the server: a new process of `worker`, which stays usable. UNAVAILABLE where the worker is
// gone, RESOURCE_EXHAUSTED where the system gives it no process, or what `keep_waiting` ends it
// with.
absl::StatusOr<std::unique_ptr<WorkerProcess>> StartTaskProcess(WorkerProcess& worker,
                                                                const v1::StartTask& start,
                                                                const KeepWaiting& keep_waiting);

struct TaskLoop {
  // In the warm process, before it forks: gets ready for tasks like it.
  std::function<void(const v1::CompileKernelRequest& like)> prepare;
  // In the task's process, whose socket is kWorkerSocketFd; ends it with the exit code.
  std::function<int(const v1::StartTask& start)> run;
};

// In the worker: serves the server's StartTask frames on kWorkerSocketFd until the server closes
// its end; returns the exit code. REQUIRES: one thread.
int ServeTasks(pid_t server, const TaskLoop& loop);

}  // namespace server
}  // namespace kiln
