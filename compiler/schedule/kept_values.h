// Costly values that a kernel computes for the same point in two phases, as a softmax its
// exponentials: computed once and kept, a row at a time, in an array of the task.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/schedule/nest.h"

namespace kiln::schedule {

struct KeptValue {
  size_t first_phase;  // computes and stores it
  const ir::Inst* first;
  size_t second_phase;  // loads it
  const ir::Inst* second;
  int64_t extent;  // of the inner loop that both phases have
};

struct KeptOptions {
  int64_t most_bytes = 0;  // of all rows together
  bool loads = false;      // what is loaded counts as costly
};
// Only between phases of one inner loop each, of equal constant extent.
std::vector<KeptValue> FindKeptValues(ir::IntContext& ints, const Nest& nest, int num_values,
                                      KeptOptions options);

}  // namespace kiln::schedule
