// NVIDIA's assembler, which makes a GPU's machine code of PTX, and its disassembler. They are other
// programs: workers of a class of their own, `kilnd worker --ptxas=FILE` and `--nvdisasm=FILE`, run
// one of them once for each task.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/workers/worker_process.h"

namespace kiln {
namespace v1 {
class AssembleResponse;
class DisassembleRequest;
class DisassembleResponse;
}  // namespace v1

namespace server {

// The descriptor that the program is executed from, and the only one that the filter of such a
// worker lets a program be executed from. It is closed on exec, and no process behind the filter
// gets another of that number (SealAssembler).
inline constexpr int kPtxasFd = 63;

// In the server: the program's path, "" where there is none. `setting` is that path, "none", or
// "auto": the first of the PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda*, and Python's wheels of
// CUDA's compiler. NOT_FOUND for a path without a program; a script is none.
absl::StatusOr<std::string> FindPtxas(absl::string_view setting);
// The same of nvdisasm; "auto" looks beside `ptxas` first.
absl::StatusOr<std::string> FindNvdisasm(absl::string_view setting, absl::string_view ptxas);

// In the worker, before it is sealed: opens its program as kPtxasFd.
absl::Status OpenProgram(const std::string& path);

// In a worker that is sealed: what the program calls its version, "13.0.88"; "" where it does not
// say so within some seconds.
std::string PtxasVersion();

// A child of this process that runs a program; it ends with this process.
struct RunningProgram {
  std::string name;
  pid_t pid = -1;
  OwnedFd log;  // what it prints
};

// In a task's process: ptxas under way, which waits for PTX. It may start long before that comes,
// as starting takes as long as many a kernel.
class Assembler {
 public:
  static absl::StatusOr<Assembler> Start(absl::string_view arch);

  const std::string& arch() const { return arch_; }
  // Before it has got anything: somebody killed it.
  bool HasEnded() const;
  // A cubin; once. INTERNAL with the program's own words where it refuses the PTX, is killed by a
  // limit or makes no cubin.
  absl::StatusOr<v1::AssembleResponse> Finish(absl::string_view ptx);

 private:
  std::string arch_;
  OwnedFd ptx_, cubin_;
  RunningProgram program_;
};
// In a task's process of a worker with nvdisasm: what it prints of a cubin, 16 MiB at most.
// INTERNAL as Finish.
absl::StatusOr<v1::DisassembleResponse> Disassemble(const v1::DisassembleRequest& request);

}  // namespace server
}  // namespace kiln
