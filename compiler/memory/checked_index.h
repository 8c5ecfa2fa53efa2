// What a run checks where it uses an index from a tensor: once checked, it cannot fail there again.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "compiler/ir/module.h"

namespace kiln::memory {

// Elements of an input, each checked to be in [0, extent).
struct CheckedIndex {
  // That loads them, in `kernel`, over those of `loops` which its indices name.
  const ir::Inst* load = nullptr;
  std::vector<ir::IntExpr> loops;
  ir::IntExpr extent;

  // Which elements: the first, and the stride and the extent of each loop.
  ir::IntExpr first;
  std::vector<std::pair<ir::IntExpr, ir::IntExpr>> dims;

  bool Same(const CheckedIndex& other) const {
    return load->buffer == other.load->buffer && extent == other.extent && first == other.first &&
           dims == other.dims;
  }
};

// By dimension of the load or store `inst` of `kernel`, those whose index is checked when it runs.
// Nothing where one of them is not just loaded from an input: then it cannot be known before.
std::optional<std::vector<std::pair<size_t, CheckedIndex>>> CheckedIndices(const ir::Module& module,
                                                                           const ir::Kernel& kernel,
                                                                           const ir::Inst& inst);

}  // namespace kiln::memory
