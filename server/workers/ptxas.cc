#include "server/workers/ptxas.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/worker.pb.h"
#include "proto/base/cuda_programs.h"
#include "proto/base/status_macros.h"
#include "server/workers/worker_process.h"

extern char** environ;

namespace kiln::server {
namespace {

constexpr size_t kMaxOutputBytes = 64 << 20;
constexpr size_t kMaxLogBytes = 64 << 10;
constexpr size_t kMaxTextBytes = 16 << 20;  // of one kernel's machine code
constexpr size_t kMaxWords = 400;           // of the program, in an error
constexpr int kVersionSeconds = 5;
// A heap that grows by much at a time, in huge pages where the system has some: of ptxas' time,
// faults for single pages are a twentieth. The C library's own settings; others ignore them.
constexpr char kHeapSettings[] =
    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.top_pad=16777216:"
    "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824";
constexpr uint16_t kElfMachineCuda = 190;

// An executable ELF file: the filter runs one program, so no interpreter of scripts.
bool IsProgram(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  if (access(path.c_str(), X_OK) != 0) return false;
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char magic[SELFMAG] = {};
  return file.get() >= 0 && read(file.get(), magic, SELFMAG) == SELFMAG &&
         std::memcmp(magic, ELFMAG, SELFMAG) == 0;
}

absl::StatusOr<std::string> Find(absl::string_view flag, absl::string_view setting,
                                 std::vector<std::string> places) {
  if (setting == "none") return "";
  if (setting != "auto") {
    std::string path(setting);
    if (IsProgram(path)) return path;
    return absl::NotFoundError(
        absl::StrCat("--", flag, ": '", path, "' is no program (an ELF file)"));
  }
  for (std::string& place : places) {
    if (IsProgram(place)) return std::move(place);
  }
  return "";
}

std::string ReadAll(int fd, size_t most) {
  std::string bytes(most, '\0');
  size_t size = 0;
  while (size < most) {
    const ssize_t got = pread(fd, bytes.data() + size, most - size, static_cast<off_t>(size));
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

// The error, as errno names it; 0 where all is written.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return 0;
}

absl::Status WriteError(int error) {
  return absl::InternalError(
      absl::StrCat("what a program is to read cannot be written: ", strerror(error)));
}

[[noreturn]] void Become(const std::vector<std::string>& arguments, int log, int wall_seconds) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit no_process = {0, 0};
  setrlimit(RLIMIT_NPROC, &no_process);
  rlimit file_size = {kMaxOutputBytes, kMaxOutputBytes};
  setrlimit(RLIMIT_FSIZE, &file_size);
  itimerval limit = {};
  limit.it_value.tv_sec = wall_seconds;
  if (wall_seconds > 0) setitimer(ITIMER_REAL, &limit, nullptr);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(kWorkerSocketFd);  // what it says there would be taken for the task's answer
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  if (getenv("GLIBC_TUNABLES") == nullptr) variables.push_back(const_cast<char*>(kHeapSettings));
  variables.push_back(nullptr);
  syscall(SYS_execveat, kPtxasFd, "", argv.data(), variables.data(), AT_EMPTY_PATH);
  _exit(127);
}

// A program under way, whose name comes first among its arguments. 0 seconds are no limit: the task
// has one.
absl::StatusOr<RunningProgram> StartProgram(const std::vector<std::string>& arguments,
                                            int wall_seconds) {
  RunningProgram program;
  program.name = arguments[0];
  program.log = OwnedFd(memfd_create("log", 0));
  program.pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (program.pid < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("clone: ", strerror(errno)));
  }
  if (program.pid == 0) Become(arguments, program.log.get(), wall_seconds);
  return program;
}

// What it printed, once it has ended.
absl::StatusOr<std::string> EndOf(const RunningProgram& program, size_t most_printed) {
  int status = 0;
  while (waitpid(program.pid, &status, 0) < 0) {
    if (errno != EINTR) return absl::InternalError(absl::StrCat("waitpid: ", strerror(errno)));
  }
  std::string printed = ReadAll(program.log.get(), most_printed);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return printed;
  std::string how = WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                                        : absl::StrCat("exit ", WEXITSTATUS(status));
  return absl::InternalError(
      absl::StrCat(program.name, ": ", how, " ", printed.substr(0, kMaxWords)));
}

std::string PathOf(const OwnedFd& file) {
  return absl::StrCat("/proc/self/fd/", file.get());
}

bool IsCubin(absl::string_view bytes) {
  Elf64_Ehdr header = {};
  if (bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
         header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == kElfMachineCuda;
}

}  // namespace

absl::StatusOr<std::string> FindPtxas(absl::string_view setting) {
  return Find("ptxas", setting, CudaProgramPlaces("ptxas", {"cu*", "cuda_nvcc"}));
}

absl::StatusOr<std::string> FindNvdisasm(absl::string_view setting, absl::string_view ptxas) {
  std::vector<std::string> places = CudaProgramPlaces("nvdisasm", kNvdisasmWheels);
  const size_t folder = ptxas.rfind('/');
  if (folder != absl::string_view::npos) {
    places.insert(places.begin(), absl::StrCat(ptxas.substr(0, folder), "/nvdisasm"));
  }
  return Find("nvdisasm", setting, std::move(places));
}

absl::Status OpenProgram(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || dup3(file.get(), kPtxasFd, O_CLOEXEC) < 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

std::string PtxasVersion() {
  const auto program = StartProgram({"ptxas", "--version"}, kVersionSeconds);
  if (!program.ok()) return "";
  const absl::StatusOr<std::string> text = EndOf(*program, kMaxLogBytes);
  if (!text.ok()) return "";
  const size_t at = text->find(", V");  // "Cuda compilation tools, release 13.0, V13.0.88"
  if (at == std::string::npos) return "";
  absl::string_view rest = absl::string_view(*text).substr(at + 3);
  const auto end = std::find_if(rest.begin(), rest.end(), [](char c) {
    return !absl::ascii_isdigit(static_cast<unsigned char>(c)) && c != '.';
  });
  return std::string(rest.begin(), end);
}

absl::StatusOr<Assembler> Assembler::Start(absl::string_view arch) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, 0) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  }
  const OwnedFd ptx(pipe_fds[0]);
  Assembler assembler;
  assembler.arch_ = std::string(arch);
  assembler.ptx_ = OwnedFd(pipe_fds[1]);
  fcntl(assembler.ptx_.get(), F_SETFD, FD_CLOEXEC);  // else the program would wait for itself
  assembler.cubin_ = OwnedFd(memfd_create("cubin", 0));
  KILN_ASSIGN_OR_RETURN(assembler.program_,
                        StartProgram({"ptxas", absl::StrCat("-arch=", arch), PathOf(ptx), "-o",
                                      PathOf(assembler.cubin_)},
                                     /*wall_seconds=*/0));
  return assembler;
}

bool Assembler::HasEnded() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(program_.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

absl::StatusOr<v1::AssembleResponse> Assembler::Finish(absl::string_view ptx) {
  // One that ends before it has read all says why itself.
  const int error = WriteAll(ptx_.get(), ptx);
  if (error != 0 && error != EPIPE) return WriteError(error);
  ptx_ = OwnedFd();
  KILN_RETURN_IF_ERROR(EndOf(program_, kMaxLogBytes).status());
  struct stat info = {};
  if (fstat(cubin_.get(), &info) != 0 || info.st_size > static_cast<off_t>(kMaxOutputBytes)) {
    return absl::InternalError("ptxas made too much");
  }
  v1::AssembleResponse response;
  response.set_cubin(ReadAll(cubin_.get(), static_cast<size_t>(info.st_size)));
  if (!IsCubin(response.cubin())) return absl::InternalError("ptxas made no cubin");
  return response;
}

absl::StatusOr<v1::DisassembleResponse> Disassemble(const v1::DisassembleRequest& request) {
  const OwnedFd cubin(memfd_create("cubin", 0));
  const int error = WriteAll(cubin.get(), request.cubin());
  if (error != 0) return WriteError(error);
  v1::DisassembleResponse response;
  KILN_ASSIGN_OR_RETURN(const RunningProgram program,
                        StartProgram({"nvdisasm", "-c", PathOf(cubin)}, /*wall_seconds=*/0));
  KILN_ASSIGN_OR_RETURN(*response.mutable_text(), EndOf(program, kMaxTextBytes));
  if (response.text().empty()) return absl::InternalError("nvdisasm printed nothing");
  return response;
}

}  // namespace kiln::server
