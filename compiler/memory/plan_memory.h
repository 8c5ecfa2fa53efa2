// Memory planning: where each temporary buffer lies in the run's one workspace, and each prepared
// one in the block that the client keeps.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/ir/module.h"

namespace kiln::memory {

inline constexpr int64_t kAlignment = 64;  // bytes

// The next multiple of kAlignment, as the planner writes the size of a region for one buffer.
ir::IntExpr RoundUp(ir::IntContext& ints, ir::IntExpr bytes);

struct Plan {
  // By BufferId: the byte offset in the workspace of each kTemp buffer that is used and lies in no
  // input, and in a block of their own of each kPrepared buffer; null for others.
  std::vector<ir::IntExpr> offsets;
  // By BufferId: the buffer whose storage this one takes over in place, or -1. That is another
  // kTemp buffer, of equal offset, or a kInput buffer, which then holds its new value. The kernel
  // that writes this one reads the other for the last time, each element at the point that
  // overwrites it.
  std::vector<ir::BufferId> in_place_of;
  // What the workspace is divided into, from its first byte to its last without gaps: one region
  // for the buffers of constant size, then those that buffers of symbolic size begin at. Buffers of
  // different regions are apart whatever the sizes are; no proof about their sum is needed.
  struct Region {
    ir::IntExpr begin, size;  // bytes
  };
  std::vector<Region> regions;
  ir::IntExpr workspace_bytes;
  int64_t prepared_bytes = 0;
};

// Lifetimes over the order of operations, then offsets: largest first, each at the lowest offset
// that is free over its lifetime (Pisarchyk and Lee, "Efficient memory management for deep neural
// net inference", 2020); in place where legal, and in the inputs that the graph updates
// (write_inputs.h), whose copies at the end of `module` are removed. Buffers whose sizes are
// symbolic share storage only with buffers of provably equal or larger size.
absl::StatusOr<Plan> PlanMemory(ir::Module& module);

// Proves that no live buffer is overwritten: replays the operations over byte ranges and, for
// buffers in place, the indices of loads and stores. INTERNAL with the operation and both buffers.
absl::Status CheckPlan(const ir::Module& module, const Plan& plan);

}  // namespace kiln::memory
