// Operands of a contraction that are contiguous along some loops of k, not along its lanes: the
// weights of a convolution in its gradients, whose lanes lie a kernel's elements apart.
#pragma once

#include <optional>
#include <vector>

#include "compiler/schedule/nest.h"
#include "proto/base/dtype.h"

namespace kiln::schedule::cpu {

struct ShortRuns {
  const Step* load = nullptr;
  ir::IntExpr lane_stride;          // what one lane adds to its index
  std::vector<ir::IntExpr> run;     // adjacent loops of k, taken as one: contiguous
  std::vector<ir::IntExpr> others;  // the rest of them, outermost first
  ir::IntExpr run_stride;           // what one element of a run adds to the number of k's point
};

// How `steps`, which make the operand, read it by such runs, where they are worth a micro-kernel;
// nothing where they are no plain load of `type`.
std::optional<ShortRuns> FindShortRuns(ir::IntContext& ints, const std::vector<const Step*>& steps,
                                       const std::vector<ir::IntExpr>& lanes,
                                       const std::vector<ir::IntExpr>& k, DType type);

}  // namespace kiln::schedule::cpu
