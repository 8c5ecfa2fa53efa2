#include "server/workers/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/status_macros.h"

extern char** environ;

namespace kiln::server {
namespace {

// For how long after its socket a process may end.
constexpr absl::Duration kLinger = absl::Seconds(1);

// A worker has no business with the server's environment, which may hold tokens.
bool IsForWorkers(absl::string_view variable) {
  static constexpr absl::string_view kPrefixes[] = {
      "KILN_LOG=", "LD_",    "GLIBC_TUNABLES=", "MALLOC_",
      "ASAN_",     "UBSAN_", "TSAN_",           "LLVM_PROFILE_"};
  for (absl::string_view prefix : kPrefixes) {
    if (absl::StartsWith(variable, prefix)) return true;
  }
  return false;
}

std::vector<char*> WorkerEnvironment() {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (IsForWorkers(*variable)) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  return variables;
}

int Spawn(const std::vector<std::string>& command, int child_fd, pid_t* pid) {
  std::vector<char*> argv;
  for (const std::string& arg : command) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  // Standard output is the server's one ready line.
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_fd, kWorkerSocketFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);  // a group of its own
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  int error =
      posix_spawn(pid, argv[0], &actions, &attributes, argv.data(), WorkerEnvironment().data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

WorkerExit Classify(int wait_status, const rusage& usage, int64_t memory_bytes) {
  if (WIFEXITED(wait_status)) {
    int code = WEXITSTATUS(wait_status);
    if (code == 0) return {ExitReason::kNormal, "exit 0"};
    if (code == kWorkerOutOfMemoryExit) return {ExitReason::kMemory, "out of memory"};
    return {ExitReason::kCrash, absl::StrCat("exit ", code)};
  }
  int signal = WTERMSIG(wait_status);
  std::string text = absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  if (signal == SIGSYS) text += ", a system call that a compile may not make";
  if (signal == SIGXCPU) return {ExitReason::kTimeout, text};
  // A library that meets the limit on memory aborts in its own way.
  bool near_limit = usage.ru_maxrss * 1024 >= memory_bytes / 10 * 9;
  return {near_limit ? ExitReason::kMemory : ExitReason::kCrash, text};
}

}  // namespace

absl::string_view ExitReasonName(ExitReason reason) {
  switch (reason) {
    case ExitReason::kNormal:
      return "normal";
    case ExitReason::kCrash:
      return "crash";
    case ExitReason::kTimeout:
      return "timeout";
    case ExitReason::kMemory:
      return "memory";
  }
  return "crash";
}

void OwnedFd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<SocketPair> MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", strerror(errno)));
  }
  SocketPair sockets{OwnedFd(fds[0]), OwnedFd(fds[1])};
  fcntl(sockets.server.get(), F_SETFL, O_NONBLOCK);
  return sockets;
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(
    const std::vector<std::string>& command, const WorkerLimits& limits) {
  KILN_ASSIGN_OR_RETURN(SocketPair sockets, MakeSocketPair());
  // dup2 onto itself would leave close-on-exec set, so the child's end must not be that number.
  if (sockets.child.get() == kWorkerSocketFd) {
    sockets.child = OwnedFd(fcntl(sockets.child.get(), F_DUPFD_CLOEXEC, kWorkerSocketFd + 1));
  }
  std::vector<std::string> full = command;
  full.push_back(absl::StrCat("--parent-pid=", getpid()));
  full.push_back(absl::StrCat("--memory-bytes=", limits.memory_bytes));
  full.push_back(absl::StrCat(
      "--cpu-seconds=", absl::ToInt64Seconds(absl::Ceil(limits.task_timeout, absl::Seconds(1)))));
  pid_t pid = 0;
  if (int error = Spawn(full, sockets.child.get(), &pid); error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", command.front(), ": ", strerror(error)));
  }
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess(Kind::kWorker, pid, std::move(sockets.server), limits.memory_bytes));
}

std::unique_ptr<WorkerProcess> WorkerProcess::OfTask(const WorkerProcess& worker, pid_t pid,
                                                     OwnedFd socket) {
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess(Kind::kTask, pid, std::move(socket), worker.memory_bytes_));
}

WorkerProcess::WorkerProcess(Kind kind, pid_t pid, OwnedFd socket, int64_t memory_bytes)
    : kind_(kind), pid_(pid), socket_(std::move(socket)), memory_bytes_(memory_bytes) {}

WorkerProcess::~WorkerProcess() {
  if (!reaped_) Reap(/*kill=*/true);
}

int64_t WorkerProcess::ResidentBytes() const {
  std::FILE* file = std::fopen(absl::StrCat("/proc/", pid_, "/statm").c_str(), "re");
  if (file == nullptr) return 0;
  long total_pages = 0;
  long resident_pages = 0;
  int read = std::fscanf(file, "%ld %ld", &total_pages, &resident_pages);
  std::fclose(file);
  return read == 2 ? resident_pages * sysconf(_SC_PAGESIZE) : 0;
}

bool WorkerProcess::HasEnded() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

void WorkerProcess::AwaitEnd() const {
  const absl::Time give_up = absl::Now() + kLinger;
  while (!HasEnded() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
}

WorkerExit WorkerProcess::Reap(bool kill) {
  socket_.Close();
  // Whoever closed its own end may yet stay.
  if (!kill) AwaitEnd();
  ::kill(pid_, SIGKILL);
  reaped_ = true;
  if (kind_ == Kind::kTask) return Wait(pid_);
  // The worker's group keeps its number while the worker is not reaped, and so is no other's.
  siginfo_t info = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  ::kill(-pid_, SIGKILL);
  return Wait(-pid_);
}

WorkerExit WorkerProcess::Wait(pid_t process_or_group) const {
  WorkerExit exit{ExitReason::kCrash, "it was not there"};
  while (true) {
    int wait_status = 0;
    rusage usage = {};
    const pid_t ended = wait4(process_or_group, &wait_status, 0, &usage);
    if (ended == pid_) exit = Classify(wait_status, usage, memory_bytes_);
    if (ended == process_or_group || (ended < 0 && errno != EINTR)) return exit;
  }
}

}  // namespace kiln::server
