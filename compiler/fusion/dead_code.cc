#include <algorithm>

#include "compiler/fusion/passes.h"

namespace kiln::fusion {

void RemoveDeadKernels(FusionGraph& graph) {
  const std::vector<int> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (graph.Changeable(*it) == nullptr) continue;
    const std::vector<ir::BufferId>& writes = graph.op(*it).writes;
    const bool is_used = std::any_of(writes.begin(), writes.end(), [&](ir::BufferId b) {
      return graph.IsKept(b) || !graph.ReadersOf(b).empty();
    });
    if (!is_used) graph.Remove(*it);
  }
}

}  // namespace kiln::fusion
