// What chains of kernels take in tiles that overlap, and how long these tiles are best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/chains.h"
#include "compiler/schedule/gcu/handed_on.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/prices.h"
#include "compiler/schedule/tileable.h"

namespace kiln::schedule::gcu {

class ChainPrices {
 public:
  // What is given must outlive it.
  ChainPrices(ir::Module& module, const Machine& machine, const BufferUses& uses,
              const Handing& handing, Prices& prices)
      : module_(module), machine_(machine), uses_(uses), handing_(handing), prices_(prices) {}

  struct Price {
    double seconds = 0;  // of one launch, but for its overhead
    int64_t step = 0;    // iterations of a tile
  };
  // The cheaper of running twice what two tiles need, and keeping it, with the best of the steps
  // that are tried: the longest tiles that fit `room` bytes of L2, and shorter ones. Nothing where
  // none fits. `kept`: what the chain hands on.
  std::optional<Price> Best(const Chain& chain, const std::vector<ir::BufferId>& kept,
                            int64_t room);

 private:
  int64_t Peak(const Chain& chain, const std::vector<Overlap>& kernels,
               const std::vector<ir::BufferId>& kept, int64_t step) const;
  double Seconds(const Chain& chain, const TileRun& run, const InL2& in_l2);
  double MoveSeconds(size_t k, ir::IntExpr loop, int64_t rows) const;
  const ir::Kernel& KernelAt(size_t k) const;
  ir::IntExpr LoopAt(const Chain& chain, size_t k) const;

  ir::Module& module_;
  const Machine& machine_;
  const BufferUses& uses_;
  const Handing& handing_;
  Prices& prices_;
};

}  // namespace kiln::schedule::gcu
