// A kernel as a launch sees it: its entry point and what that expects.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/base/cpu_kernel_abi.h"

namespace kiln {
namespace v1 {
class KernelInterface;
class Program;
}  // namespace v1
}  // namespace kiln

namespace kiln::runtime {

struct Kernel {
  KilnCpuKernel entry = nullptr;  // of a CPU
  int function = -1;              // of a GPU: its number in the program's runtime::Archive
  std::shared_ptr<const v1::KernelInterface> interface;  // not null; launches of a kernel share it
};

// Of the name of the string in a kernel's machine code that states its interface.
inline constexpr absl::string_view kInterfaceSuffix = "_interface";

// DATA_LOSS for what is no interface.
absl::StatusOr<std::shared_ptr<const v1::KernelInterface>> ParseInterface(absl::string_view text);

// What of the launches needs no sizes: as many arguments as each kernel has, of its types; it
// writes only to what is the run's own, or to an input that `may_write` allows; and what it reads
// was written before, as are outputs. DATA_LOSS with the place. REQUIRES: CheckProgram(program)
// passed; `kernels` holds the kernel of each launch step, in order.
absl::Status CheckLaunches(const v1::Program& program, absl::Span<const Kernel> kernels,
                           const std::function<bool(int input)>& may_write);

}  // namespace kiln::runtime
