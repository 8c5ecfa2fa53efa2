// What a run checks where it uses an index from a tensor: once checked, it cannot fail there again.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::memory {

// Values computed of inputs and constants alone, each checked to be in [0, extent).
struct CheckedIndex {
  struct Op {
    const ir::Inst* inst = nullptr;  // of the kernel
    std::vector<size_t> operands;    // which ops give them
    // Of a load which element, of an `index` which number: at the loops' begin, and a step's of
    // each.
    ir::IntExpr first;
    std::vector<ir::IntExpr> strides;
  };
  std::vector<Op> ops;  // in order, loads among them; the last one gives the values
  ir::IntExpr extent;
  std::vector<ir::IntExpr> loops;   // of the kernel, over which the ops' values differ
  std::vector<ir::IntExpr> others;  // which they may name and do not depend on

  // Whether all values are the same, whatever kernel they are computed in.
  bool Same(const CheckedIndex& other) const;
};

// Of the instruction `inst` of `kernel`, the indices that are checked when it runs. Nothing where
// one of them needs more than inputs, or where it checks a divisor: what cannot be known before.
std::optional<std::vector<CheckedIndex>> CheckedIndices(const ir::Module& module,
                                                        const ir::Kernel& kernel,
                                                        const ir::Inst& inst);

}  // namespace kiln::memory
