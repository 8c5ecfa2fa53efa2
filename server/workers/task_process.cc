#include "server/workers/task_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::server {
namespace {

// As fork(), but the child's parent is the server: this process could be killed and leave it
// behind, and the server could not wait for it. The C library has no function for that; what its
// fork() does beyond this call is for other threads, of which there are none.
pid_t ForkAsSibling() {
  return static_cast<pid_t>(
      syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

[[noreturn]] void BecomeTask(pid_t server, int socket_fd, const v1::StartTask& start,
                             const TaskLoop& loop) {
  // Takes the place of the worker's own socket, on which a task could pretend to be the worker.
  dup2(socket_fd, kWorkerSocketFd);
  close(socket_fd);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a child does not inherit it
  if (getppid() != server) _exit(0);
  _exit(loop.run(start));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcess>> StartTaskProcess(WorkerProcess& worker,
                                                                const v1::StartTask& start,
                                                                const KeepWaiting& keep_waiting) {
  KILN_ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair());
  const int fd = worker.socket_fd();
  KILN_RETURN_IF_ERROR(WriteFrame(fd, start.SerializeAsString(), keep_waiting));
  KILN_RETURN_IF_ERROR(SendDescriptor(fd, sockets.child.get(), keep_waiting));
  KILN_ASSIGN_OR_RETURN(std::string frame, ReadFrame(fd, keep_waiting));
  v1::TaskStarted started;
  if (!started.ParseFromString(frame)) {
    return absl::InternalError("a worker sent a malformed response");
  }
  if (started.pid() <= 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a worker cannot make a process for a task: ", started.error()));
  }
  return WorkerProcess::OfTask(worker, static_cast<pid_t>(started.pid()),
                               std::move(sockets.server));
}

int ServeTasks(pid_t server, const TaskLoop& loop) {
  while (true) {
    absl::StatusOr<std::string> frame = ReadFrame(kWorkerSocketFd, {});
    if (!frame.ok()) return 0;  // the server closed its end
    v1::StartTask start;
    if (!start.ParseFromString(*frame)) return 1;
    absl::StatusOr<int> socket_fd = ReceiveDescriptor(kWorkerSocketFd, {});
    if (!socket_fd.ok()) return 0;
    if (start.has_prepare()) loop.prepare(start.prepare());
    const pid_t pid = ForkAsSibling();
    if (pid == 0) BecomeTask(server, *socket_fd, start, loop);
    v1::TaskStarted started;
    if (pid > 0) {
      started.set_pid(pid);
    } else {
      started.set_error(strerror(errno));
    }
    close(*socket_fd);
    if (!WriteFrame(kWorkerSocketFd, started.SerializeAsString(), {}).ok()) return 0;
  }
}

}  // namespace kiln::server
