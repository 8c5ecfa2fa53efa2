#include "server/workers/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KILN_SANITIZED 1
#endif
#endif

namespace kiln::server {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

constexpr SandboxLimits kLimits = {.memory_bytes = int64_t{512} << 20};

// Each of these runs in a child of its own, which a sandbox cannot leave.
class SandboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef KILN_SANITIZED
    GTEST_SKIP() << "a sanitizer needs what the sandbox takes";
#endif
  }
};

[[noreturn]] void Leave(bool as_expected) {
  _exit(as_expected ? 0 : 1);
}

// Everything that a task's process has been through; what is not in force here, in words.
std::string SealAll() {
  std::vector<std::string> missing = SealWorker();
  for (std::string& what : SealTask()) missing.push_back(std::move(what));
  return absl::StrJoin(missing, ";");
}

// `what` after all steps; exits with 0 where it returns true.
[[noreturn]] void Sealed(bool (*what)()) {
  LimitProcess(kLimits);
  SealAll();
  Leave(what());
}

// The same in a worker, which has not taken the last step.
[[noreturn]] void SealedWorker(bool (*what)()) {
  LimitProcess(kLimits);
  SealWorker();
  Leave(what());
}

bool LimitIs(int resource, rlim_t value) {
  rlimit limit = {};
  getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  return limit.rlim_cur == value && limit.rlim_max == value;
}

TEST_F(SandboxTest, LimitsResourcesForGood) {
  auto check = [] {
    LimitProcess(kLimits);
    Leave(LimitIs(RLIMIT_CORE, 0) && LimitIs(RLIMIT_NOFILE, 64) &&
          LimitIs(RLIMIT_DATA, static_cast<rlim_t>(kLimits.memory_bytes)) &&
          LimitIs(RLIMIT_FSIZE, static_cast<rlim_t>(MaxFileBytes(kLimits))));
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, GivesUpPrivilegesAndInheritedDescriptors) {
  auto check = [] {
    int inherited = dup2(STDERR_FILENO, 40);
    LimitProcess(kLimits);
    char folder[16] = {};
    Leave(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && prctl(PR_GET_DUMPABLE) == 0 &&
          inherited == 40 && fcntl(40, F_GETFD) < 0 && fcntl(STDERR_FILENO, F_GETFD) >= 0 &&
          getcwd(folder, sizeof(folder)) != nullptr && std::string(folder) == "/");
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, RootBecomesNobodyOrSaysThatItCannot) {
  if (geteuid() != 0) GTEST_SKIP() << "not root";
  auto check = [] {
    std::string missing = absl::StrJoin(LimitProcess(kLimits), ";");
    bool changed = getuid() != 0 && geteuid() != 0 && setuid(0) != 0 && errno == EPERM;
    Leave(changed || absl::StrContains(missing, "stays root"));
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

// From here on the process gets EPERM from one system call, as under a service manager's filter.
bool Forbid(int system_call) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {static_cast<unsigned short>(std::size(code)), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(SandboxTest, WhoHasNoCapabilitiesNeedNotBeAllowedToDropThem) {
  auto check = [](bool has_none) {
    if (has_none) LimitProcess(kLimits);
    if (!Forbid(SYS_capset)) _exit(2);
    std::string missing = absl::StrJoin(LimitProcess(kLimits), ";");
    Leave(absl::StrContains(missing, "capabilities stay") == !has_none);
  };
  EXPECT_EXIT(check(true), ExitedWithCode(0), "");
  if (geteuid() != 0) GTEST_SKIP() << "not root: there are none from the beginning";
  // Root keeps them where it cannot become another user.
  auto stays_root = [&check] {
    if (!Forbid(SYS_setresuid)) _exit(2);
    check(false);
  };
  EXPECT_EXIT(stays_root(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, AWriteOverTheLimitIsAnErrorAndNoCrash) {
  auto check = [] {
    LimitProcess(kLimits);
    int fd = memfd_create("large", 0);
    Leave(fd >= 0 && ftruncate(fd, MaxFileBytes(kLimits)) == 0 &&
          lseek(fd, 0, SEEK_END) == MaxFileBytes(kLimits) && write(fd, "x", 1) < 0 &&
          errno == EFBIG);
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, SealedItComputesAllocatesAndUsesWhatIsOpen) {
  auto check = [] {
    LimitProcess(kLimits);
    int file = memfd_create("open", 0);
    SealAll();
    std::vector<std::string> blocks(64, std::string(1 << 20, 'x'));
    std::string path = "/proc/self/fd/" + std::to_string(file);
    int again = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    char byte = 0;
    Leave(blocks.back()[1000] == 'x' && write(file, "y", 1) == 1 && again >= 0 &&
          read(again, &byte, 1) == 1 && byte == 'y' && dup2(file, STDOUT_FILENO) >= 0);
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, SealedItReadsNoFile) {
  auto check = [] {
    LimitProcess(kLimits);
    if (absl::StrContains(SealAll(), "landlock")) _exit(2);
    Leave(open("/etc/passwd", O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES);
  };
  // 2: this kernel has no Landlock, and the process said so.
  EXPECT_EXIT(
      check(), [](int status) { return WIFEXITED(status) && WEXITSTATUS(status) % 2 == 0; }, "");
}

TEST_F(SandboxTest, SealedItMakesNoThreadNoCodeAndNoMemoryFile) {
  auto check = [] {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    int thread_error =
        pthread_create(&thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr);
    return page == MAP_FAILED && thread_error == EAGAIN && memfd_create("more", 0) < 0 &&
           errno == EPERM;
  };
  EXPECT_EXIT(Sealed(check), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, SealedItSharesNoFlagsOfOpenFiles) {
  auto check = [] {
    int copy = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    return copy >= 10 && fcntl(copy, F_GETFD) == FD_CLOEXEC && fcntl(copy, F_GETFL) >= 0 &&
           fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK) < 0 && errno == EPERM &&
           fcntl(STDERR_FILENO, F_SETOWN, getppid()) < 0 && errno == EPERM;
  };
  EXPECT_EXIT(Sealed(check), ExitedWithCode(0), "");
}

long CloneWith(int flags) {
  return syscall(SYS_clone, flags, nullptr, nullptr, nullptr, nullptr);
}

TEST_F(SandboxTest, AWorkerMakesTasksOfItsServerAndNoOtherProcess) {
  auto makes_a_task = [] {
    int file = memfd_create("of the task", MFD_CLOEXEC);
    long child = CloneWith(CLONE_PARENT | SIGCHLD);
    if (child == 0) Leave(SealTask().empty() && memfd_create("more", 0) < 0);
    return file >= 0 && child > 0 && waitpid(-1, nullptr, 0) < 0 && errno == EPERM;
  };
  // The task is this process's child, which reaps it.
  EXPECT_EXIT(SealedWorker(makes_a_task), ExitedWithCode(0), "");
  int status = -1;
  EXPECT_GT(waitpid(-1, &status, 0), 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  auto forks = [] { return CloneWith(SIGCHLD) >= 0; };
  auto shares_memory = [] { return CloneWith(CLONE_PARENT | CLONE_VM | SIGCHLD) >= 0; };
  auto runs = [] { return execl("/bin/true", "true", nullptr) == 0; };
  auto signals = [] { return kill(getppid(), 0) == 0; };
  EXPECT_EXIT(SealedWorker(forks), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(SealedWorker(shares_memory), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(SealedWorker(runs), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(SealedWorker(signals), KilledBySignal(SIGSYS), "");
}

TEST_F(SandboxTest, ATaskMakesNoProcessEvenWhereThereIsNoFilter) {
  auto check = [] {
    LimitProcess(kLimits);
    Forbid(SYS_prctl);  // with which a filter is installed
    SealTask();
    Leave(LimitIs(RLIMIT_NPROC, 0));
  };
  EXPECT_EXIT(check(), ExitedWithCode(0), "");
}

TEST_F(SandboxTest, SealedItMayAbort) {
  auto check = []() -> bool { abort(); };
  EXPECT_EXIT(Sealed(check), KilledBySignal(SIGABRT), "");
}

TEST_F(SandboxTest, ForbiddenCallsEndTheProcess) {
  auto forks = [] { return fork() >= 0; };
  auto runs = [] { return execl("/bin/true", "true", nullptr) == 0; };
  auto connects = [] { return socket(AF_INET, SOCK_STREAM, 0) >= 0; };
  auto writes = [] { return open("/tmp/kiln-sandbox-test", O_WRONLY | O_CREAT, 0600) >= 0; };
  auto removes = [] { return unlink("/tmp/kiln-sandbox-test") == 0; };
  auto siblings = [] { return CloneWith(CLONE_PARENT | SIGCHLD) >= 0; };
  auto signals = [] { return kill(getppid(), 0) == 0; };
  EXPECT_EXIT(Sealed(siblings), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(forks), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(runs), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(connects), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(writes), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(removes), KilledBySignal(SIGSYS), "");
  EXPECT_EXIT(Sealed(signals), KilledBySignal(SIGSYS), "");
}

}  // namespace
}  // namespace kiln::server
