// Kernels that run tile by tile, as one kernel whose tasks are the tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/schedule/bounded.h"
#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// A kernel's tree where it runs for one tile inside of a task, or, without `tile`, by itself.
absl::StatusOr<Tree> ScheduleForTile(ir::Module& module, const ir::Kernel& kernel,
                                     const DeviceInfo& device, const schedule::Tile* tile);

// Calls `visit` with the buffer of each store.
template <typename Visit>  // void(ir::BufferId)
void ForEachStore(const ir::Kernel& kernel, const Visit& visit) {
  ForEachInst(kernel, [&](const ir::Inst& inst) {
    if (inst.op == ir::ScalarOp::kStore) visit(inst.buffer);
  });
}

// One tile of a repeat with such steps: where it begins in each tiled loop, and how its buffers lie
// in the memory that a task has for them.
class TileMaker {
 public:
  // `first`: any kernel of the repeat.
  TileMaker(ir::Module& module, const std::vector<int64_t>& steps, const ir::Kernel& first);

  // The loops over tiles, appended to `out`, in whose body the tile is; each is a task.
  Block& AddLoops(Block& out);
  // Elements of one tile of `buffer`, which `kernel` of the repeat stores.
  ir::IntExpr AddBuffer(ir::BufferId buffer, const ir::Kernel& kernel);
  // Loops of the kernels that end early, by how much after the tile's rows, which the last step is
  // of; their ends are let in `out`, the tile's body.
  void AddBounds(const BoundedLoops& loops, Block& out);
  // The tile for a kernel of the repeat.
  schedule::Tile Of(const ir::Kernel& kernel) const;

 private:
  ir::Module& module_;
  ir::IntContext& ints_;
  const std::vector<int64_t> steps_;
  std::vector<ir::IntExpr> begins_, ends_;  // `ends_` null where a step is 1
  std::vector<ir::IntExpr> extents_;
  absl::flat_hash_map<ir::BufferId, TileLayout> layouts_;
  absl::flat_hash_map<ir::IntExpr, TilePart> bounded_;
};

}  // namespace kiln::schedule::cpu
