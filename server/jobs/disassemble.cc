#include "server/jobs/disassemble.h"

#include <utility>

#include "kiln/v1/worker.pb.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::server {

absl::StatusOr<std::vector<std::string>> Disassemble(WorkerBackend& workers,
                                                     const std::vector<std::string>& cubins,
                                                     int64_t order,
                                                     const std::shared_ptr<JobControl>& control) {
  // Of a job that was stopped a task may still write to its own.
  auto texts = std::make_shared<std::vector<std::string>>(cubins.size());
  for (size_t i = 0; i < cubins.size(); ++i) {
    if (cubins[i].empty()) continue;
    auto request = std::make_shared<v1::WorkerRequest>();
    request->mutable_disassemble()->set_cubin(cubins[i]);
    WorkerTask task;
    task.request = std::move(request);
    task.job = order;
    task.stopped = [control] { return control->stopped(); };
    task.done = [control, texts, i](absl::StatusOr<v1::WorkerResponse> response) {
      if (response.ok()) {
        (*texts)[i] = std::move(*response->mutable_disassemble()->mutable_text());
      } else {
        Log(LogLevel::kInfo, "a kernel's machine code is not shown",
            {{"why", std::string(response.status().message())}});
      }
      control->Answered();
    };
    control->Expect(1);
    workers.Submit(std::move(task));
  }
  KILN_RETURN_IF_ERROR(control->Wait());
  return std::move(*texts);
}

}  // namespace kiln::server
