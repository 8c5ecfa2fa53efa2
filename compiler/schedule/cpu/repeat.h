// Kernels that run tile by tile, as one kernel whose tasks are the tiles.
#pragma once

#include <cstdint>
#include <optional>
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

// One tile of a repeat: where it begins in each tiled loop, and how its buffers lie in the memory
// that a task has for them.
class TileMaker {
 public:
  // REQUIRES: a repeat as Verify wants it, but for its sums.
  TileMaker(ir::Module& module, const ir::Repeat& repeat,
            std::vector<std::vector<ir::IntExpr>> loops);

  // The loops over tiles `first` to `last` - 1, appended to `out`, in whose body what they let is.
  Block& AddLoops(size_t first, size_t last, Binding binding, Block& out);
  // Elements of one tile of `buffer`, which `kernel`, number `number` of the repeat, stores.
  ir::IntExpr AddBuffer(ir::BufferId buffer, const ir::Kernel& kernel, size_t number);
  bool HasBuffer(ir::BufferId buffer) const { return layouts_.contains(buffer); }
  // The part that counts of loops of the kernels in a tile of the last loop; its ends are let in
  // `out`, the tile's body.
  void AddBounds(const BoundedLoops& loops, Block& out);
  // The tile for kernel `number` of the repeat.
  schedule::Tile Of(size_t number) const;

 private:
  // Of one tiled loop, for the kernels that run the same of loops of the same length.
  struct WindowPart {
    size_t loop;
    ir::TileWindow window;
    ir::IntExpr extent;
    TilePart part;
  };

  ir::IntExpr ExtentOf(size_t loop) const;
  // Whether kernel `number` runs neither more nor less than the tile.
  bool RunsTile(size_t number, size_t loop) const;
  void AddWindowParts(size_t loop);
  void LetWindow(const WindowPart& made, Block& out);
  // The part of a tiled loop that kernel `number` runs; nothing where that is the iteration at
  // which a tile begins.
  std::optional<TilePart> PartOf(size_t number, size_t loop) const;

  ir::Module& module_;
  ir::IntContext& ints_;
  const std::vector<int64_t> steps_;
  const std::vector<std::vector<ir::TileWindow>> windows_;
  const std::vector<std::vector<ir::IntExpr>> loops_;
  std::vector<WindowPart> window_parts_;
  std::vector<ir::IntExpr> begins_, ends_;  // `ends_` null where a tile is one iteration
  std::vector<ir::IntExpr> extents_;
  absl::flat_hash_map<ir::BufferId, TileLayout> layouts_;
  absl::flat_hash_map<ir::IntExpr, TilePart> bounded_;
};

}  // namespace kiln::schedule::cpu
