// Lowering: from ATen operators to the loop IR, one lowering per operator, found in the registry.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/graph/graph.h"
#include "compiler/ir/module.h"

namespace kiln::lowering {

struct LoweringOptions {
  // Whether the client can run ATen operators itself ("torch" among Device.libraries). Where it
  // cannot, an operator without a lowering is UNIMPLEMENTED with a detail that names op and node.
  bool library_steps = false;
  // Whether inputs that the graph calls parameters are marked so (ir::Buffer::parameter): the
  // client keeps what is made of them alone.
  bool mark_parameters = false;
  // Whether products of few rows, of 16 bits, are contractions as others are, and not sums of rows.
  bool contracts_few_rows = false;
  // Of kernels that one operator made: whether the device's libraries run it better. Where one is,
  // and `library_steps`, the operator becomes a Library operation as a whole. `goes_on`: what reads
  // the operator's result works on its elements one by one. May be null.
  std::function<bool(ir::Module& module, const ir::Kernel& kernel, bool goes_on)> left_to_libraries;
  // Of all kernels that one operator made, several: whether the device runs them as one launch,
  // and faster so than its libraries. They become a repeat then. May be null.
  std::function<bool(ir::Module& module, const std::vector<const ir::Kernel*>& kernels)>
      taken_together;
  // Whether a run fails where an integer is divided by zero, as ATen's kernels do on some devices.
  bool checks_divisors = false;
  // Whether kernels of windows run best with lanes of channels: fusion's lanes_beside_windows.
  bool lanes_beside_windows = false;
  // Whether an attention that is not, of however few queries, is better left to libraries.
  bool attention_by_libraries = false;
};

// Every operation of the graph becomes kernels over buffers, or a Library operation where no
// lowering exists or the lowering declines these arguments. One op makes one or a few kernels, each
// writing one buffer; nothing is fused yet. `module.ints` is the context that `graph` was imported
// with.
absl::Status Lower(const graph::Graph& graph, const LoweringOptions& options, ir::Module& module);

// Names of all operators with a native lowering, sorted: "aten.add.Tensor", ...
std::vector<std::string> LoweredOps();

}  // namespace kiln::lowering
