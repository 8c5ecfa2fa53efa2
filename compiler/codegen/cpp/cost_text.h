// What one point of a grid of tasks costs, for the prelude's decision how many tasks it is worth.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "compiler/codegen/source/kernel_text.h"
#include "compiler/schedule/tree.h"

namespace kiln::codegen::cpp {

// Scalar operations of one row and one lane of the grid that `nodes` are, as C++ over symbols:
// loops count as often as they run where everything around them is at its first iteration.
std::string CostText(ir::IntContext& ints, const schedule::Tree& tree,
                     absl::Span<const schedule::Node> nodes, source::Names& names);

}  // namespace kiln::codegen::cpp
