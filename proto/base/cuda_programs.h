// Where NVIDIA's programs (ptxas, nvdisasm) are looked for, in the server and in the command line.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln {

// Folders of the wheels that carry nvdisasm.
inline constexpr absl::string_view kNvdisasmWheels[] = {"cu*", "cuda_nvdisasm"};

// Paths at which the program may lie, the first one first: the absolute folders of the PATH,
// CUDA_HOME, CUDA_PATH, /usr/local/cuda*, and Python's wheels of CUDA, of whose folders below
// site-packages/nvidia `wheels` are the names or patterns, such as "cuda_nvcc". Those of the last
// two kinds exist.
std::vector<std::string> CudaProgramPlaces(absl::string_view program,
                                           absl::Span<const absl::string_view> wheels);

}  // namespace kiln
