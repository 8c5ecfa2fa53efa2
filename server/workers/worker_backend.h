// What runs compile work: the pool of worker processes, or a fake in tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kiln {
namespace v1 {
class WorkerRequest;
class WorkerResponse;
}  // namespace v1

namespace server {

struct WorkerTask {
  std::shared_ptr<const v1::WorkerRequest> request;
  int64_t job = 0;     // the lowest go first: the order in which jobs started, and more for what
                       // may wait, as warm-up and the later kernels of a large graph
  int64_t weight = 0;  // of one number the heaviest go first
  // Polled; once true the task is dropped or, where it runs, ended within half a second.
  std::function<bool()> stopped;
  // Responses before the last one, on a backend's thread; may block. An error ends the task.
  std::function<absl::Status(const v1::WorkerResponse&)> on_event;
  // Called once, on a backend's thread: the last response, or an error. A worker that died is an
  // error with a detail of REASON_WORKER_CRASHED, _TIMEOUT or _MEMORY.
  std::function<void(absl::StatusOr<v1::WorkerResponse>)> done;
};

// Thread-safe.
class WorkerBackend {
 public:
  virtual ~WorkerBackend() = default;
  virtual void Submit(WorkerTask task) = 0;
};

// True where a worker died of this task, in any of the three ways.
bool IsWorkerDeath(const absl::Status& status);
// True where it crashed: the one death that is worth a second try.
bool IsWorkerCrash(const absl::Status& status);

}  // namespace server
}  // namespace kiln
