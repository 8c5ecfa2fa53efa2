// Processes for tasks that a worker makes while it has nothing to do. Each has compiled a small
// kernel, so that its task does not pay for code and memory that a process touches first: of a
// kernel's processor time a quarter (README.md, Workers); a worker's with ptxas has started that.
// It has seen nothing of a client's but names of kinds of device, and serves one task, as one made
// for that task does.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/workers/task_process.h"

namespace kiln {
namespace v1 {
class StartTask;
}

namespace server {

// Of one worker; used by its slot's thread alone.
class StandbyTasks {
 public:
  explicit StandbyTasks(int most) : most_(most) {}

  // Whether Add would make one for tasks that `start` gets ready for. False for tasks for which
  // there is nothing to get ready.
  bool Wants(const v1::StartTask& start) const;
  // Makes one, in the place of one of another kind where there are as many as there may be. An
  // error of StartTaskProcess. REQUIRES: Wants(start).
  absl::Status Add(WorkerProcess& worker, const v1::StartTask& start,
                   const KeepWaiting& keep_waiting);
  // One that was made for tasks that `start` gets ready for, or null; any one for a task for which
  // there is nothing to get ready.
  std::unique_ptr<WorkerProcess> Take(const v1::StartTask& start);
  // Ends all: before their worker is reaped.
  void Clear() { waiting_.clear(); }

 private:
  struct Waiting {
    std::string kind;
    std::unique_ptr<WorkerProcess> process;
  };
  const int most_;
  std::deque<Waiting> waiting_;  // oldest first
};

}  // namespace server
}  // namespace kiln
