// A contraction computes what is done with its results while they are in registers.
#include "compiler/fusion/join_ops.h"
#include "compiler/fusion/passes.h"

namespace kiln::fusion {

using ir::BufferId;
using ir::Kernel;

namespace {

// Joins one consumer; returns the operation that stands for both, or -1.
int JoinOneConsumer(FusionGraph& graph, int contraction) {
  const std::vector<BufferId> writes = graph.op(contraction).writes;
  for (BufferId buffer : writes) {
    for (int reader : graph.ReadersOf(buffer)) {
      const Kernel* kernel = graph.Fusible(reader);
      if (kernel == nullptr || !IsPointwise(*kernel)) continue;
      const absl::string_view objection = TryJoin(graph, contraction, reader, buffer);
      graph.Record(contraction, reader, objection.empty(),
                   objection.empty() ? "epilogue of a contraction" : objection);
      if (objection.empty()) return reader;
    }
  }
  return -1;
}

}  // namespace

void FuseEpilogues(FusionGraph& graph) {
  // The last first: of two contractions that one kernel adds, the later one takes it.
  const std::vector<int> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Kernel* kernel = graph.Fusible(*it);
    if (kernel == nullptr || kernel->schedule != ir::Schedule::kContraction) continue;
    int at = *it;
    while (at >= 0) at = JoinOneConsumer(graph, at);
  }
}

}  // namespace kiln::fusion
