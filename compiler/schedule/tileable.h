// Which kernels may run tile by tile, as an ir::Repeat. Whether they should, a target decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule {

// By BufferId, which operations use it.
class BufferUses {
 public:
  explicit BufferUses(const ir::Module& module);

  // Those that load it, ascending; none where a library step or the module's caller sees it.
  const std::vector<size_t>& LoadersOf(ir::BufferId buffer) const { return loaders_[buffer]; }

 private:
  std::vector<std::vector<size_t>> loaders_;
};

// Kernels that hand temporary buffers on to each other, which no other operation loads.
struct Tileable {
  std::vector<size_t> operations;  // ascending; all may run where the last one stands
  std::vector<ir::BufferId> buffers;
  // The loops that can be tiled, as in ir::Repeat: of each the variable in each kernel.
  std::vector<std::vector<ir::IntExpr>> loops;
};

// The kernel of operation `first`, all that load its temporary buffers, all that load theirs, as
// long as that leaves all loops that can be tiled but the last. The more kernels the fewer loops:
// one choice for each number of loops, that with the most kernels first. Nothing where that is one
// kernel.
std::vector<Tileable> FindTileable(const ir::Module& module, const BufferUses& uses, size_t first);

// The kernels of `tileable` with the first `steps.size()` of its loops outermost.
ir::Repeat MakeRepeat(const ir::Module& module, const Tileable& tileable,
                      const std::vector<int64_t>& steps);

// Puts `repeat` in the place of its kernels. Operations keep their numbers until the caller removes
// those that are no more: empty repeats.
void Replace(ir::Module& module, const Tileable& tileable, ir::Repeat repeat);

}  // namespace kiln::schedule
