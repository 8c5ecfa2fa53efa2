// Joins two operations of the graph if that is possible and keeps enough parallelism. Private to
// compiler/fusion.
#pragma once

#include "absl/strings/string_view.h"
#include "compiler/fusion/fusion_graph.h"

namespace kiln::fusion {

// Tries to make `first` and `second` one kernel whose loops follow their accesses of `buffer`,
// which `second` loads and `first` stores or loads. On success `second` stands for both. Returns
// an empty text then, else the reason why not. REQUIRES: both fusible; first before second.
absl::string_view TryJoin(FusionGraph& graph, int first, int second, ir::BufferId buffer);

// The same for kernels of equal outer loops, whatever they read.
absl::string_view TryJoinUnrelated(FusionGraph& graph, int first, int second);

}  // namespace kiln::fusion
