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

// Only between phases of one inner loop each, of equal constant extent, whose rows fit half of a
// first-level cache of `l1_bytes` together.
std::vector<KeptValue> FindKeptValues(ir::IntContext& ints, const Nest& nest, int num_values,
                                      int64_t l1_bytes);

}  // namespace kiln::schedule
