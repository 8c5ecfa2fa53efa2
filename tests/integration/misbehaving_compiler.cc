// The compiler of a kilnd that exists for isolation_test.cc alone: a graph named "misbehave:WHAT"
// or "misbehave:WHAT:PATH" does what a compiler bug, or code that took over a worker, would do; one
// named "lie:WHAT" attacks other clients' kernels (lies.h). Every other graph goes to the real
// compiler.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kiln/v1/worker.pb.h"
#include "server/workers/worker_compiler.h"
#include "tests/integration/lies.h"

namespace kiln::server {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

absl::Status Errno(absl::string_view what) {
  return absl::PermissionDeniedError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status Segfault(const std::string&) {
  volatile int* nowhere = nullptr;
  *nowhere = 1;
  raise(SIGSEGV);  // where a sanitizer lets the line above pass
  return absl::InternalError("it survived");
}

int Descend(volatile char* above) {
  volatile char block[4096] = {};
  block[0] = *above;
  return *above < 0 ? 0 : Descend(block) + block[0];
}

absl::Status OverflowTheStack(const std::string&) {
  volatile char start = 0;
  return absl::InternalError(absl::StrCat("it survived ", Descend(&start)));
}

absl::Status Loop(const std::string&) {
  for (volatile unsigned i = 0;; i = i + 1) {
  }
}

absl::Status AllocateWithoutEnd(const std::string&) {
  std::vector<std::string> blocks;
  while (true) blocks.emplace_back(kBlockBytes, 'x');
}

// Shared pages are outside the limit on data.
absl::Status MapWithoutEnd(const std::string&) {
  while (true) {
    void* block =
        mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    memset(block, 1, kBlockBytes);
  }
}

// What is written to memory files is in no process's resident size.
absl::Status FillMemoryFiles(const std::string&) {
  std::string block(kBlockBytes, 'x');
  size_t written = 0;
  while (true) {
    int fd = memfd_create("full", MFD_CLOEXEC);
    if (fd < 0) return Errno(absl::StrCat("memfd_create after ", written, " bytes"));
    ssize_t n = 0;
    while ((n = write(fd, block.data(), block.size())) > 0) written += static_cast<size_t>(n);
  }
}

absl::Status ForkWithoutEnd(const std::string&) {
  while (true) {
    pid_t child = fork();
    if (child < 0) return Errno("fork");
    if (child == 0) setsid();  // out of the group, and forks on
  }
}

absl::Status StartThreads(const std::string&) {
  try {
    while (true) std::thread([] { pause(); }).detach();
  } catch (const std::system_error& error) {
    return absl::PermissionDeniedError(absl::StrCat("thread: ", error.what()));
  }
}

absl::Status RunAProgram(const std::string& path) {
  char* const arguments[] = {const_cast<char*>("touch"), const_cast<char*>(path.c_str()), nullptr};
  execv("/usr/bin/touch", arguments);
  return Errno("execv");
}

// PATH is a folder; the loop ends where the disk does, if nobody stops it before.
absl::Status FillTheDisk(const std::string& path) {
  std::string block(kBlockBytes, 'x');
  for (int i = 0;; ++i) {
    int fd = open(absl::StrCat(path, "/fill-", i).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return Errno("open for writing");
    ssize_t n = write(fd, block.data(), block.size());
    close(fd);
    if (n < 0) return Errno("write");
  }
}

absl::Status Connect(const std::string&) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Errno("socket");
  return absl::InternalError("it has a socket");
}

absl::Status ReadAFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Errno("open");
  std::ostringstream text;
  text << file.rdbuf();
  return absl::InternalError(absl::StrCat("it read ", text.str()));
}

absl::Status MakeCode(const std::string&) {
  void* page =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? Errno("mmap") : absl::InternalError("it can make code");
}

// Descriptors beyond the socket and the linker's two memory files, and what of the environment.
absl::Status TellWhatItHas(const std::string&) {
  std::string found;
  for (int fd = 0; fd < 1024; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) absl::StrAppend(&found, " ", fd);
  }
  const char* secret = getenv("KILN_TEST_SECRET");
  return absl::PermissionDeniedError(
      absl::StrCat("descriptors:", found, "; secret: ", secret == nullptr ? "none" : secret));
}

struct Deed {
  absl::string_view name;
  absl::Status (*run)(const std::string& path);
};

constexpr Deed kDeeds[] = {
    {"segfault", &Segfault},   {"stack", &OverflowTheStack},
    {"loop", &Loop},           {"allocate", &AllocateWithoutEnd},
    {"map", &MapWithoutEnd},   {"memory-files", &FillMemoryFiles},
    {"fork", &ForkWithoutEnd}, {"threads", &StartThreads},
    {"exec", &RunAProgram},    {"disk", &FillTheDisk},
    {"connect", &Connect},     {"read", &ReadAFile},
    {"make-code", &MakeCode},  {"tell", &TellWhatItHas},
};

absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request) {
  absl::string_view name = request.graph().name();
  if (!absl::ConsumePrefix(&name, "misbehave:")) return LyingPlan(request);
  std::pair<std::string, std::string> order = absl::StrSplit(name, absl::MaxSplits(':', 1));
  for (const Deed& deed : kDeeds) {
    if (deed.name == order.first) return deed.run(order.second);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown deed '", order.first, "'"));
}

}  // namespace

WorkerCompiler MakeWorkerCompiler() {
  return {
      .plan = &Plan, .compile_kernel = &LyingCompile, .link = &LyingLink, .kernels_of_build = [] {
        return std::vector<KernelOfBuild>();
      }};
}

}  // namespace kiln::server
