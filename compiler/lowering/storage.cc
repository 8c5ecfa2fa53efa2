#include "compiler/lowering/storage.h"

#include <numeric>
#include <variant>

#include "proto/base/view_ops.h"

namespace kiln::lowering {

Storage FindStorage(const graph::Graph& graph) {
  Storage storage;
  storage.root.resize(graph.values.size());
  std::iota(storage.root.begin(), storage.root.end(), 0);
  storage.is_shared.resize(graph.values.size(), false);
  std::vector<bool> is_made(graph.values.size(), false);
  for (const graph::Node& node : graph.nodes) {
    const graph::ValueRef* viewed = node.args.empty() || ViewKindOf(node.op) == ViewKind::kNone
                                        ? nullptr
                                        : std::get_if<graph::ValueRef>(&node.args.front().value);
    for (const graph::ValueRef result : node.results) {
      is_made[result.id] = true;
      if (viewed != nullptr) storage.root[result.id] = storage.root[viewed->id];
    }
  }
  std::vector<int> first(graph.values.size(), -1);  // output, by root
  for (const graph::Output& output : graph.outputs) {
    const auto* ref = std::get_if<graph::ValueRef>(&output);
    if (ref == nullptr) continue;
    const int root = storage.root[ref->id];
    if (first[root] == -1) first[root] = ref->id;
    if (first[root] != ref->id && is_made[root]) storage.is_shared[root] = true;
  }
  return storage;
}

}  // namespace kiln::lowering
