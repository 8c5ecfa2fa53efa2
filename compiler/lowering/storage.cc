#include "compiler/lowering/storage.h"

#include <numeric>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace kiln::lowering {
namespace {

// ATen's views: their results lie in the memory of the first argument. Not those that may copy
// (reshape, contiguous, to): capture leaves none of them.
bool IsViewOp(absl::string_view op) {
  static const auto* const views = new absl::flat_hash_set<absl::string_view>{
      "_reshape_alias",   "_unsafe_view", "alias",   "as_strided", "detach", "diagonal",  "expand",
      "expand_as",        "flatten",      "numpy_T", "permute",    "select", "slice",     "split",
      "split_with_sizes", "squeeze",      "t",       "transpose",  "unbind", "unsqueeze", "view"};
  if (!absl::ConsumePrefix(&op, "aten.")) return false;
  return views->contains(op.substr(0, op.find('.')));
}

}  // namespace

Storage FindStorage(const graph::Graph& graph) {
  Storage storage;
  storage.root.resize(graph.values.size());
  std::iota(storage.root.begin(), storage.root.end(), 0);
  storage.is_shared.resize(graph.values.size(), false);
  std::vector<bool> is_made(graph.values.size(), false);
  for (const graph::Node& node : graph.nodes) {
    const graph::ValueRef* viewed = node.args.empty() || !IsViewOp(node.op)
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
