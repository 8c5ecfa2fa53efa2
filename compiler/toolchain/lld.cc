#include "compiler/toolchain/lld.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "lld/Common/Driver.h"
#include "llvm/Support/CrashRecoveryContext.h"
#include "llvm/Support/raw_ostream.h"
#include "proto/base/program_stamp.h"
#include "proto/base/status_macros.h"

LLD_HAS_DRIVER(elf)

namespace kiln::toolchain {
namespace {

// lld keeps its state in globals, and after an error that it does not come back from in an orderly
// way that state is unusable.
absl::Mutex lld_mutex(absl::kConstInit);
bool lld_is_usable ABSL_GUARDED_BY(lld_mutex) = true;

absl::Status ErrnoError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

// A file that exists in memory only. Emptied before each use.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : fd_(memfd_create(name, MFD_CLOEXEC)) {}
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

  absl::Status Clear() {
    if (fd_ < 0) return absl::InternalError("cannot create a memory file for the linker");
    if (ftruncate(fd_, 0) != 0 || lseek(fd_, 0, SEEK_SET) != 0) {
      return ErrnoError("empty the linker's memory file");
    }
    return absl::OkStatus();
  }

  absl::Status Append(absl::string_view content) {
    while (!content.empty()) {
      const ssize_t written = write(fd_, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return ErrnoError("write the linker's input");
      content.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Content() {
    const off_t size = lseek(fd_, 0, SEEK_END);
    if (size < 0 || lseek(fd_, 0, SEEK_SET) != 0) return ErrnoError("read the linker's output");
    std::string content(static_cast<size_t>(size), '\0');
    size_t at = 0;
    while (at < content.size()) {
      const ssize_t count = read(fd_, content.data() + at, content.size() - at);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return ErrnoError("read the linker's output");
      at += static_cast<size_t>(count);
    }
    return content;
  }

 private:
  const int fd_;
};

// Made once a process: a compile's may create no file any more by the time it links what came from
// a client.
struct LinkFiles {
  MemoryFile input{"kiln-objects"};
  MemoryFile output{"kiln-shared-object"};
};

std::unique_ptr<LinkFiles>& Files() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lld_mutex) {
  static auto* const files = new std::unique_ptr<LinkFiles>;
  if (*files == nullptr) *files = std::make_unique<LinkFiles>();
  return *files;
}

// The process's standard output is `fd` while this lives.
class StandardOutputInto {
 public:
  explicit StandardOutputInto(int fd) {
    llvm::outs().flush();
    saved_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    ok_ = dup2(fd, STDOUT_FILENO) >= 0;
  }
  ~StandardOutputInto() {
    llvm::outs().flush();
    llvm::outs().clear_error();  // of a write that failed; at exit it would be fatal
    if (saved_ >= 0) {
      dup2(saved_, STDOUT_FILENO);
      close(saved_);
    } else {
      close(STDOUT_FILENO);  // as it was before
    }
  }
  bool ok() const { return ok_; }

 private:
  int saved_ = -1;
  bool ok_ = false;
};

// lld does not come back from an archive with a member that is something else.
absl::Status CheckObject(absl::string_view object) {
  constexpr absl::string_view kStart =
      "\x7f"
      "ELF\x02\x01";  // 64 bits, little endian
  if (object.substr(0, kStart.size()) == kStart) return absl::OkStatus();
  return absl::InternalError("linking failed: one of the objects is no ELF object of 64 bits");
}

// All objects as one ar archive (System V format): one file, however many kernels there are.
absl::Status WriteArchive(absl::Span<const std::string> objects, MemoryFile& file) {
  KILN_RETURN_IF_ERROR(file.Clear());
  KILN_RETURN_IF_ERROR(file.Append("!<arch>\n"));
  for (const std::string& object : objects) {
    KILN_RETURN_IF_ERROR(CheckObject(object));
    // Name, date, owner, group, mode, size; then the bytes, padded to an even length.
    KILN_RETURN_IF_ERROR(file.Append(absl::StrFormat("%-16s%-12d%-6d%-6d%-8s%-10d`\n", "kernel.o/",
                                                     0, 0, 0, "644", object.size())));
    KILN_RETURN_IF_ERROR(file.Append(object));
    if (object.size() % 2 != 0) KILN_RETURN_IF_ERROR(file.Append("\n"));
  }
  return absl::OkStatus();
}

struct LldRun {
  lld::Result result;
  std::string messages;
};

LldRun RunLld(const std::vector<std::string>& args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lld_mutex) {
  std::vector<const char*> arg_pointers;
  for (const std::string& arg : args) arg_pointers.push_back(arg.c_str());
  LldRun run;
  llvm::raw_string_ostream stream(run.messages);
  // With recovery on, lld's fatal errors return here instead of ending the process.
  llvm::CrashRecoveryContext::Enable();
  run.result = lld::lldMain(arg_pointers, stream, stream, {{lld::Gnu, &lld::elf::link}});
  llvm::CrashRecoveryContext::Disable();
  stream.flush();
  return run;
}

}  // namespace

void MakeOwnMemoryFiles() {
  absl::MutexLock lock(&lld_mutex);
  std::unique_ptr<LinkFiles>& files = Files();
  files = nullptr;  // closed first: few descriptors are allowed
  files = std::make_unique<LinkFiles>();
}

absl::StatusOr<std::string> LinkSharedObject(absl::Span<const std::string> objects) {
  if (objects.empty()) return absl::InternalError("nothing to link");
  absl::MutexLock lock(&lld_mutex);
  if (!lld_is_usable) {
    return absl::InternalError("the linker failed beyond recovery earlier in this process");
  }
  auto& [input, output] = *Files();
  KILN_RETURN_IF_ERROR(WriteArchive(objects, input));
  KILN_RETURN_IF_ERROR(output.Clear());
  // To "-", standard output, lld writes without creating a file.
  const std::vector<std::string> args = {"ld.lld",
                                         "-m",
                                         "elf_x86_64",
                                         "-shared",
                                         std::string(kEmptyStampOption),
                                         "--hash-style=gnu",
                                         "-z",
                                         "now",
                                         "--no-gc-sections",
                                         "--threads=1",
                                         "-o",
                                         "-",
                                         "--whole-archive",
                                         input.path()};
  LldRun run;
  {
    StandardOutputInto redirected(output.fd());
    if (!redirected.ok()) return ErrnoError("give the linker its output");
    run = RunLld(args);
  }
  lld_is_usable = run.result.canRunAgain;
  KILN_ASSIGN_OR_RETURN(std::string shared_object, output.Content());
  // Memory of the largest link is not kept.
  KILN_RETURN_IF_ERROR(input.Clear());
  KILN_RETURN_IF_ERROR(output.Clear());
  if (run.result.retCode != 0 || shared_object.empty()) {
    return absl::InternalError(absl::StrCat(
        "linking failed: ", run.messages.empty() ? "lld gave no message" : run.messages));
  }
  return shared_object;
}

}  // namespace kiln::toolchain
