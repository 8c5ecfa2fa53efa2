#include "compiler/toolchain/lld.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "lld/Common/Driver.h"
#include "llvm/Support/CrashRecoveryContext.h"
#include "llvm/Support/raw_ostream.h"
#include "proto/base/status_macros.h"

LLD_HAS_DRIVER(elf)

namespace kiln::toolchain {
namespace {

// lld keeps its state in globals, and after an error that it does not come back from in an orderly
// way that state is unusable.
absl::Mutex lld_mutex(absl::kConstInit);
bool lld_is_usable ABSL_GUARDED_BY(lld_mutex) = true;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { Close(); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

 private:
  int fd_;
};

absl::Status ErrnoError(absl::string_view what) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<FileDescriptor> MemoryFile(absl::string_view content) {
  FileDescriptor file(memfd_create("kiln-object", MFD_CLOEXEC));
  if (file.get() < 0) return ErrnoError("create a memory file for the linker");
  while (!content.empty()) {
    const ssize_t written = write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoError("write the linker's input");
    content.remove_prefix(static_cast<size_t>(written));
  }
  return file;
}

// Reads `fd` to its end. Errors end the text: the caller sees that it is no shared object.
std::string ReadAll(int fd) {
  std::string content;
  char chunk[1 << 16];
  while (true) {
    const ssize_t count = read(fd, chunk, sizeof chunk);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return content;
    content.append(chunk, static_cast<size_t>(count));
  }
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

absl::StatusOr<std::string> LinkSharedObject(absl::Span<const std::string> objects) {
  if (objects.empty()) return absl::InternalError("nothing to link");
  std::vector<FileDescriptor> inputs;
  for (const std::string& object : objects) {
    KILN_ASSIGN_OR_RETURN(FileDescriptor input, MemoryFile(object));
    inputs.push_back(std::move(input));
  }
  // No file is ever created: inputs are memory files, and lld writes what is not a regular file
  // straight through, so that a pipe takes its output.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("create the linker's output pipe");
  FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);

  std::vector<std::string> args = {"ld.lld",
                                   "-m",
                                   "elf_x86_64",
                                   "-shared",
                                   "--build-id=none",
                                   "--hash-style=gnu",
                                   "-z",
                                   "now",
                                   "--no-gc-sections",
                                   "--threads=1",
                                   "-o",
                                   write_end.path()};
  for (const FileDescriptor& input : inputs) args.push_back(input.path());

  std::string shared_object;
  LldRun run;
  {
    absl::MutexLock lock(&lld_mutex);
    if (!lld_is_usable) {
      return absl::InternalError("the linker failed beyond recovery earlier in this process");
    }
    std::thread reader([&] { shared_object = ReadAll(read_end.get()); });
    run = RunLld(args);
    lld_is_usable = run.result.canRunAgain;
    write_end.Close();
    reader.join();
  }
  if (run.result.retCode != 0 || shared_object.empty()) {
    return absl::InternalError(absl::StrCat(
        "linking failed: ", run.messages.empty() ? "lld gave no message" : run.messages));
  }
  return shared_object;
}

}  // namespace kiln::toolchain
