// A worker process, or one of its tasks': started, watched, killed, reaped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

// The child's end of the socket, in a worker and in a task's process, and its exit code where it
// ran out of memory.
inline constexpr int kWorkerSocketFd = 3;
inline constexpr int kWorkerOutOfMemoryExit = 77;

enum class ExitReason { kNormal, kCrash, kTimeout, kMemory };
// "normal", "crash", "timeout", "memory": metric labels.
absl::string_view ExitReasonName(ExitReason reason);

struct WorkerExit {
  ExitReason reason = ExitReason::kNormal;
  std::string text;  // "signal 11 (Segmentation fault)", for messages
};

// A descriptor, closed at the end.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { Close(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  int get() const { return fd_; }
  void Close();

 private:
  int fd_;
};

struct SocketPair {
  OwnedFd server;  // non-blocking
  OwnedFd child;   // blocks
};

// Close-on-exec, both: neither may reach another child.
absl::StatusOr<SocketPair> MakeSocketPair();

// A child of this process, used by one thread: the one that started it, with which it dies.
class WorkerProcess {
 public:
  // Spawns `command` (a program and its first arguments); flags with the limits are appended. It
  // leads a process group, to which its tasks' processes belong.
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(
      const std::vector<std::string>& command, const WorkerLimits& limits);
  // A process that `worker` made for a task, and the server's end of its socket.
  static std::unique_ptr<WorkerProcess> OfTask(const WorkerProcess& worker, pid_t pid,
                                               OwnedFd socket);
  // Kills and reaps the child if that was not done.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  int socket_fd() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  // Physical memory in use; 0 where the child is gone.
  int64_t ResidentBytes() const;
  // True once the child has ended; it is then still to be reaped.
  bool HasEnded() const;
  // Closes the socket, kills (unless `kill`, only what has not ended by itself within a second),
  // waits, and says why it ended. A worker takes along what it may have left of its tasks: REQUIRES
  // that none of them has a WorkerProcess any more.
  WorkerExit Reap(bool kill);

 private:
  enum class Kind { kWorker, kTask };
  WorkerProcess(Kind kind, pid_t pid, OwnedFd socket, int64_t memory_bytes);
  void AwaitEnd() const;
  WorkerExit Wait(pid_t process_or_group) const;
  const Kind kind_;
  const pid_t pid_;
  OwnedFd socket_;
  const int64_t memory_bytes_;
  bool reaped_ = false;
};

}  // namespace kiln::server
