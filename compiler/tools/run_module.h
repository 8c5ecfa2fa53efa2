// Runs a module in the reference interpreter with random inputs, for kiln-opt --run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/tree.h"

namespace kiln::tools {

struct RunOptions {
  uint64_t seed = 0;
  std::vector<int64_t> symbols;  // empty: the symbols' hints
};

// Inputs and constants by number and seed: floating values are uniform in [-1, 1), integers in
// {0, 1}, bools true, so that integers are legal indices of any dimension of two elements. So a
// module and what a stage makes of it get equal inputs and must report equal outputs.
// Returns a line for each output: type, sizes, the sum of its elements and the sum of the elements
// times their distance from the end, both to ten digits, and its first eight elements to six.
// REQUIRES: a verified module.
// `trees`: the schedules to run, one for each kernel; none for the kernels themselves.
absl::StatusOr<std::string> RunModule(const ir::Module& module,
                                      const std::vector<schedule::Tree>& trees,
                                      const RunOptions& options);

}  // namespace kiln::tools
