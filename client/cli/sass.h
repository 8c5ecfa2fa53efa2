// A GPU's machine code as text, by NVIDIA's disassembler.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kiln {
namespace v1 {
class Artifact;
}

namespace cli {

// SASS of each kernel under a line with its name: as the server shows it, where it has a
// disassembler and was asked for debug; else of the artifact's cubins by the first nvdisasm of this
// machine's PATH, CUDA_HOME, CUDA_PATH and /usr/local/cuda. FAILED_PRECONDITION where there is
// none, or the artifact has no cubins; INTERNAL with the program's own words where it refuses one.
absl::StatusOr<std::string> SassText(const v1::Artifact& artifact);

}  // namespace cli
}  // namespace kiln
