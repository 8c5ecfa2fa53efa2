#include "server/workers/standby.h"

#include <algorithm>
#include <utility>

#include "kiln/v1/worker.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

// Empty for tasks for which nothing is to be got ready.
std::string KindOf(const v1::StartTask& start) {
  return start.prepare().SerializeAsString();
}

}  // namespace

bool StandbyTasks::Wants(const v1::StartTask& start) const {
  const std::string kind = KindOf(start);
  if (kind.empty()) return false;
  return std::count_if(waiting_.begin(), waiting_.end(),
                       [&](const Waiting& one) { return one.kind == kind; }) < most_;
}

absl::Status StandbyTasks::Add(WorkerProcess& worker, const v1::StartTask& start,
                               const KeepWaiting& keep_waiting) {
  v1::StartTask ahead = start;
  ahead.set_warm_up(true);
  KILN_ASSIGN_OR_RETURN(auto process, StartTaskProcess(worker, ahead, keep_waiting));
  const std::string kind = KindOf(start);
  if (static_cast<int>(waiting_.size()) >= most_) {
    waiting_.erase(std::find_if(waiting_.begin(), waiting_.end(),
                                [&](const Waiting& one) { return one.kind != kind; }));
  }
  waiting_.push_back({kind, std::move(process)});
  return absl::OkStatus();
}

std::unique_ptr<WorkerProcess> StandbyTasks::Take(const v1::StartTask& start) {
  const std::string kind = KindOf(start);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->kind != kind) {
      ++it;
      continue;
    }
    std::unique_ptr<WorkerProcess> process = std::move(it->process);
    it = waiting_.erase(it);
    if (!process->HasEnded()) return process;  // else somebody killed it: no task's doing
  }
  return nullptr;
}

}  // namespace kiln::server
