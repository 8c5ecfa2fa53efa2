// One worker process: started, limited, killed, reaped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kiln::server {

struct WorkerLimits {
  int64_t memory_bytes = int64_t{4} << 30;
  absl::Duration task_timeout = absl::Seconds(120);  // wall time, and processor time, of one task
};

// The child's end of the socket, and its exit code where it ran out of memory.
inline constexpr int kWorkerSocketFd = 3;
inline constexpr int kWorkerOutOfMemoryExit = 77;

enum class ExitReason { kNormal, kCrash, kTimeout, kMemory };
// "normal", "crash", "timeout", "memory": metric labels.
absl::string_view ExitReasonName(ExitReason reason);

struct WorkerExit {
  ExitReason reason = ExitReason::kNormal;
  std::string text;  // "signal 11 (Segmentation fault)", for messages
};

// Used by one thread, the one that started it: the child dies with that thread.
class WorkerProcess {
 public:
  // Spawns `command` (a program and its first arguments); flags with the limits are appended.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      const std::vector<std::string>& command, const WorkerLimits& limits);
  // Kills and reaps the child if that was not done.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  int socket_fd() const { return socket_fd_; }
  pid_t pid() const { return pid_; }
  // Physical memory in use; 0 where the child is gone.
  int64_t ResidentBytes() const;
  // True once the child has ended; it is then still to be reaped.
  bool HasEnded() const;
  // Kills where `kill` (else lets it end by itself after closing its socket), waits, and says why
  // it ended.
  WorkerExit Reap(bool kill);

 private:
  WorkerProcess(pid_t pid, int socket_fd, int64_t memory_bytes);
  const pid_t pid_;
  int socket_fd_;
  const int64_t memory_bytes_;
  bool reaped_ = false;
};

}  // namespace kiln::server
