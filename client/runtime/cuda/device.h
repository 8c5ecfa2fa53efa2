// The NVIDIA GPUs of this machine, described for the compiler.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class Device;
}
}  // namespace kiln

namespace kiln::cuda {

struct Driver;

// `arch` "" or "native": the machine's first GPU, as its driver describes it; else an architecture
// by name, as proto/base/device_gpu.h knows it, for which no GPU is needed. FAILED_PRECONDITION in
// a sentence where there is no driver or GPU, or an older one than any that is known.
absl::StatusOr<v1::Device> DescribeGpuOrNative(absl::string_view arch, int threads);

absl::StatusOr<v1::Device> DescribeGpuNumber(const Driver& driver, int ordinal);

// FAILED_PRECONDITION unless code for `arch` runs on the GPU of that number.
absl::Status CheckRunsOnGpu(const Driver& driver, absl::string_view arch, int ordinal);
// The number of this machine's first GPU that does; the same error where there is none.
absl::StatusOr<int> FindGpuFor(const Driver& driver, absl::string_view arch);

}  // namespace kiln::cuda
