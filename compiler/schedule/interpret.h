// Runs schedule trees without the target that they are for.
//
// Parallel loops run in an order drawn from a seed. An access that reads memory of the kernel's own
// before it was written, that lies outside, or that meets what another iteration of a parallel loop
// writes is an error. Arithmetic is ir::Interpret's, so a right tree gives its values up to the
// order of summation.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compiler/ir/interpret.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

struct InterpretOptions {
  uint64_t seed = 0;
  int threads = 2;  // what Tree::threads is
};

// ir::Interpret with `trees`, one for each kernel of the module in order, in the kernels' place.
// REQUIRES: verified trees. INTERNAL for what a right schedule never does.
absl::StatusOr<std::vector<ir::ReferenceTensor>> Interpret(const ir::Module& module,
                                                           absl::Span<const Tree> trees,
                                                           absl::Span<const HostTensor> inputs,
                                                           absl::Span<const int64_t> symbols,
                                                           absl::Span<const std::string> constants,
                                                           const InterpretOptions& options = {});

}  // namespace kiln::schedule
