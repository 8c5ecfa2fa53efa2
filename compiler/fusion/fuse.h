// Fusion: fewer kernels and less memory traffic, by inlining producers and merging kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

// Why two operations were or were not joined; for `kiln explain` and the debug part.
struct Decision {
  std::string producer;
  std::string consumer;
  bool fused = false;
  std::string reason;
};

struct FuseOptions {
  bool enabled = true;                       // false: only dead code goes
  std::vector<std::string> disabled_passes;  // "collapse", "inline", "repeats", "epilogue",
                                             // "merge", "horizontal", "launches", "split",
                                             // "layouts"
  bool costly_launches = false;  // for a target where pass "launches" is worth its while
  bool plain_operands = false;   // contractions read their operands as they lie in memory,
  // or widen them where this says of the contraction that does so that it runs as it is. May be
  // null.
  std::function<bool(ir::Module&, const ir::Kernel&)> takes_operands;
  // Lanes are neighbouring elements, and windows are too small to be lanes: pass "layouts" lays
  // what kernels of windows read and write out along another of their loops, as that of channels.
  bool lanes_beside_windows = false;
  bool verify_passes = false;  // also after each pass
};

// In: a verified module as lowering makes it, one stored buffer a kernel. Out: an equivalent
// verified module with fewer kernels and buffers. Outputs keep their buffers, strides and order.
// Appends to `decisions`. With
// `verify_passes`, INTERNAL with the pass that left a module which is not valid.
absl::Status Fuse(ir::Module& module, const FuseOptions& options, std::vector<Decision>* decisions);

}  // namespace kiln::fusion
