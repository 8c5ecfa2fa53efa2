// Which loop of each kernel of a group is tiled, where what kernels hand on is there tile by tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

class SharedLoops {
 public:
  // A group that begins with that kernel, tiled along its outer loop of that number. `sums`:
  // whether kernels may sum over the tiled loop.
  SharedLoops(const ir::Kernel& first, int loop, bool sums);

  // Whether the first kernel can be tiled so.
  bool ok() const { return ok_; }
  // Adds the kernel that comes next; false where it cannot share tiles with those before. What
  // sums give is there after all tiles only: who loads it is in no tile.
  bool Add(const ir::Kernel& kernel);

  // Of a tiled buffer, which is one that a kernel of the group stores.
  size_t DimOf(ir::BufferId buffer) const { return dims_.at(buffer); }
  // By kernel: the number of its outer loop, or where it sums over the tiled loop, how many outer
  // loops it has and the number of the inner loop of its first phase.
  const std::vector<int64_t>& loops() const { return loops_; }

 private:
  bool AddStores(const ir::Kernel& kernel, int loop);
  std::optional<int> LoopOf(const ir::Kernel& kernel) const;
  std::optional<size_t> SumLoopOf(const ir::Kernel& kernel) const;

  const ir::IntExpr extent_;
  const bool sums_;
  bool ok_ = false;
  std::vector<int64_t> loops_;
  absl::flat_hash_map<ir::BufferId, size_t> dims_;
  absl::flat_hash_set<ir::BufferId> summed_;
};

// The inner loop that the kernel sums over tile by tile; nothing where `loop`, as of
// SharedLoops::loops, is an outer one.
std::optional<size_t> SummedLoop(const ir::Kernel& kernel, int64_t loop);

// Puts the tiled loops of `repeat`'s kernels first, and kernels that sum over them before, between
// and after the others. It adds buffers to the module. `loops`: as of SharedLoops.
void PutFirst(ir::Module& module, const std::vector<int64_t>& loops, ir::Repeat& repeat);

}  // namespace kiln::schedule::gcu
