// What a piece of a kernel costs to compute again. Private to compiler/fusion.
#pragma once

#include "compiler/ir/module.h"

namespace kiln::fusion {

struct BodyCost {
  double operations = 0;
  int loads = 0;
  int large_loads = 0;        // of buffers with at least half as many elements as there are points
  bool is_expensive = false;  // has an operation worth more than a store and a load
};

// Of a pointwise kernel, for one point.
BodyCost CostOf(ir::Module& module, const ir::Kernel& kernel);

// Whether the kernel does nothing but load elements where a comparison of its loops holds, and take
// a constant elsewhere.
bool IsPadding(const ir::Kernel& kernel);

// Whether an access of `joined` has indices beyond ir::kMostIndexNodes, and longer than any of the
// two kernels that it is made of.
bool AreIndicesTooLong(const ir::Kernel& joined, const ir::Kernel& first, const ir::Kernel& second);
inline constexpr char kLongIndices[] = "the indices would grow too long";

}  // namespace kiln::fusion
