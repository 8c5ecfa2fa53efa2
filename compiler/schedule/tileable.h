// Which kernels may run tile by tile, as an ir::Repeat. Whether they should, a target decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule {

// By BufferId, which operations use it.
class BufferUses {
 public:
  explicit BufferUses(const ir::Module& module);

  // The kernel that stores it; nothing where there is none.
  std::optional<size_t> StorerOf(ir::BufferId buffer) const { return storers_[buffer]; }

  // Those that load it, ascending; none where a library step or the module's caller sees it.
  const std::vector<size_t>& LoadersOf(ir::BufferId buffer) const { return loaders_[buffer]; }

 private:
  std::vector<std::vector<size_t>> loaders_;
  std::vector<std::optional<size_t>> storers_;
};

// Kernels that hand temporary buffers on to each other, which no other operation loads.
struct Tileable {
  std::vector<size_t> operations;  // ascending; all may run where the last one stands
  std::vector<ir::BufferId> buffers;
  // The loops that can be tiled, as in ir::Repeat: of each the variable in each kernel.
  std::vector<std::vector<ir::IntExpr>> loops;
  // Whether some kernels sum over the last of them: it is the loop of their first phase.
  bool sums = false;
  // As ir::Repeat::windows, for all of `loops`.
  std::vector<std::vector<ir::TileWindow>> windows;
};

// The kernel of operation `first`, all that load its temporary buffers, all that load theirs, as
// long as that leaves all loops that can be tiled but the last, and what is computed element by
// element for them alone. The more kernels the fewer loops:
// one choice for each number of loops, that with the most kernels first. Before them, where there
// is one, that with the most kernels and one more loop, which some of them sum over: the fewest
// that may be. Nothing where that is one kernel.
std::vector<Tileable> FindTileable(const ir::Module& module, const BufferUses& uses, size_t first);

// The kernels of `tileable` with the first `steps.size()` of its loops outermost; of those that sum
// over the last, without the buffers for it.
ir::Repeat MakeRepeat(const ir::Module& module, const Tileable& tileable,
                      const std::vector<int64_t>& steps);

// Puts `repeat` in the place of its kernels; those that sum over its last loop become kernels that
// make zeros before it, AddsUp and take the sums after it. Operations keep their numbers until the
// caller removes those that are no more: empty repeats.
void Replace(ir::Module& module, const Tileable& tileable, ir::Repeat repeat);

}  // namespace kiln::schedule
