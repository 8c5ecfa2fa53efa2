// Loops and dimensions that hold two of the model's, as a batch of sequences that is a matrix, as
// two again.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::schedule::gcu {

// A loop, and the extent of its inner half.
struct Split {
  ir::IntExpr var;
  ir::IntExpr by;
};

// A loop of whose variable indices take a quotient or remainder by a size that divides its extent.
std::optional<Split> FindSplit(ir::IntContext& ints, const ir::Kernel& kernel);
// The same among the outer loops alone.
std::optional<Split> FindOuterSplit(ir::IntContext& ints, const ir::Kernel& kernel);

// The two variables that take the loop's place, the outer one first.
std::pair<ir::IntExpr, ir::IntExpr> Apply(ir::IntContext& ints, const Split& split,
                                          ir::Kernel& kernel);

// Splits the outer loops that FindOuterSplit finds, and dimensions of `own` buffers (by buffer:
// those that only kernels see) that such loops are about, with all other loops over these: so
// kernels before and after a reshape have the same loops, and may share tiles of them.
void Unflatten(ir::Module& module, const std::vector<bool>& own);

}  // namespace kiln::schedule::gcu
