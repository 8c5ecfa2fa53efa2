#include "client/cli/sass.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/runtime/archive.h"
#include "kiln/v1/artifact.pb.h"
#include "proto/base/cuda_programs.h"
#include "proto/base/status_macros.h"

extern char** environ;

namespace kiln::cli {
namespace {

std::string FindDisassembler() {
  for (const std::string& program : CudaProgramPlaces("nvdisasm", kNvdisasmWheels)) {
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

// A file without a name, which this process and those that it starts find below /proc/self/fd. They
// must be started while it lives.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("kiln", 0)) {}
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }

  bool Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = write(fd_, bytes.data(), bytes.size());
      if (put <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    return fd_ >= 0;
  }

  std::string Read() const {
    std::string out;
    char block[1 << 16];
    ssize_t got = 0;
    while ((got = pread(fd_, block, sizeof(block), static_cast<off_t>(out.size()))) > 0) {
      out.append(block, static_cast<size_t>(got));
    }
    return out;
  }

 private:
  const int fd_;
};

// What the program prints for a cubin.
absl::StatusOr<std::string> Disassemble(const std::string& program, absl::string_view cubin) {
  MemoryFile in, out;
  if (!in.Write(cubin) || out.fd() < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a cubin's file: ", strerror(errno)));
  }
  const std::string file = absl::StrCat("/proc/self/fd/", in.fd());
  const char* argv[] = {program.c_str(), "-c", file.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.fd(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.fd(), STDERR_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr,
                                const_cast<char* const*>(argv), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::InternalError(absl::StrCat(program, ": ", strerror(error)));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return absl::InternalError(absl::StrCat("waitpid: ", strerror(errno)));
  }
  std::string text = out.Read();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return absl::InternalError(absl::StrCat(program, " failed: ", text));
}

}  // namespace

absl::StatusOr<std::string> SassText(const v1::Artifact& artifact) {
  std::string shown;
  for (const v1::Debug::KernelSource& kernel : artifact.debug().kernels()) {
    if (kernel.machine_code().empty()) continue;
    absl::StrAppend(&shown, "// ", kernel.symbol(), "\n", kernel.machine_code(), "\n");
  }
  if (!shown.empty()) return shown;
  const std::string program = FindDisassembler();
  if (program.empty()) {
    return absl::FailedPreconditionError(
        "there is no nvdisasm in the PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda or Python's "
        "wheels");
  }
  std::string out;
  for (const v1::Binary& binary : artifact.binaries()) {
    if (binary.kind() != v1::BINARY_KIND_CUBIN) continue;
    KILN_ASSIGN_OR_RETURN(const std::unique_ptr<const runtime::Archive> archive,
                          runtime::Archive::Parse(binary.data()));
    for (const runtime::ArchivedKernel& kernel : archive->kernels()) {
      KILN_ASSIGN_OR_RETURN(std::string text, Disassemble(program, kernel.module));
      absl::StrAppend(&out, "// ", kernel.name, "\n", text, "\n");
    }
  }
  if (!out.empty()) return out;
  return absl::FailedPreconditionError(
      "the artifact has no cubin: it is not for a GPU, or its server has no ptxas");
}

}  // namespace kiln::cli
