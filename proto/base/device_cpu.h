// The CPU that this process runs on, described for the compiler; and other CPUs by name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Device;
}

// Instruction set extensions in LLVM's spelling ("avx512f"), sorted: those that both the CPU and
// the operating system (its saved registers) support. Tiles (AMX) are among them where the system
// lets this process use them, for which the first call asks.
const std::vector<std::string>& HostCpuFeatures();

// LLVM's name of this CPU ("znver4", "sapphirerapids"), or the highest x86-64 level it reaches.
// Never a name whose extensions this CPU lacks: a virtual machine may hide some.
const std::string& HostCpuName();

// The highest of x86-64, x86-64-v2, x86-64-v3 and x86-64-v4 that this CPU reaches.
std::string HostCpuLevel();

// Cores that this process may run on, counting hyper-threads of a core once; at least 1.
int PhysicalProcessors();

// Describes the device that programs run on: `arch` "" or "native" for this CPU, else an LLVM CPU
// name of a known kind, with its features. `threads` 0: PhysicalProcessors(). Equal machines give
// equal descriptions: nothing that varies between boots, ranks or containers is in it.
// INVALID_ARGUMENT for an unknown name.
absl::StatusOr<v1::Device> DescribeCpu(absl::string_view arch, int threads);

// FAILED_PRECONDITION with the first missing extension unless code for `arch` with `features` runs
// on this CPU.
absl::Status CheckRunsOnHost(absl::string_view arch, const std::vector<std::string>& features);

// Every name that DescribeCpu knows.
std::vector<std::string> KnownCpuNames();

}  // namespace kiln
