// Kernels that write at positions which other tensors give.
#pragma once

#include <functional>
#include <vector>

#include "compiler/lowering/node_context.h"

namespace kiln::lowering {

// The loops of a scatter into `out`.
struct Scatter {
  View out;
  std::vector<bool> is_free;  // by dimension: every value stays at its own coordinate of it
  Ints inner;                 // sizes of the loops over the values, but for free dimensions
};

// `free`: coordinates of the free dimensions, null elsewhere; `inner`: of the loops over values.
using ScatterBody = std::function<void(KernelBuilder&, const Ints& free, const Ints& inner)>;

// One kernel: `out` begins as `begin`, then the values of each of `bodies` go to their places one
// after another (see "ordered" in ir/module.h), so that it is the same in every run.
void EmitScatter(NodeContext& n, const Scatter& s, const NodeContext::Body& begin,
                 const std::vector<ScatterBody>& bodies);

// Result 0 is `out`, or a copy of it in the result's type.
void SetFrom(NodeContext& n, const View& out);

}  // namespace kiln::lowering
