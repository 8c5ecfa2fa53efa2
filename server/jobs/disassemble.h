// A GPU's machine code as text, for people.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/job_control.h"
#include "server/workers/worker_backend.h"

namespace kiln::server {

// By cubin, "" for one that is empty, or that the disassembler does not take: a line of the log
// says why. `workers` were started with --nvdisasm; `order` is a task's (WorkerTask::job).
// CANCELLED and DEADLINE_EXCEEDED as JobControl::Wait.
absl::StatusOr<std::vector<std::string>> Disassemble(WorkerBackend& workers,
                                                     const std::vector<std::string>& cubins,
                                                     int64_t order,
                                                     const std::shared_ptr<JobControl>& control);

}  // namespace kiln::server
