#include "compiler/lowering/graph_outputs.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kiln::lowering {
namespace {

using graph::TensorType;

View CopyOf(LoweringState& state, NodeContext& context, const View& view, const Ints& strides,
            ir::BufferKind kind) {
  ir::Buffer buffer{state.UniqueName(context.node().name), view.dtype, view.sizes, strides, kind};
  const View copy = WholeBuffer(state.module, state.module.AddBuffer(std::move(buffer)));
  context.Pointwise(copy, [&](KernelBuilder& b, const Ints& at) { return b.Load(view, at); });
  return copy;
}

bool SameWindow(const ir::BufferWindow& a, const ir::BufferWindow& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.sizes == b.sizes &&
         SameStrides(a.sizes, a.strides, b.strides);
}

// The window of `view`, where it may serve as output without a copy: on a buffer that a kernel of
// this graph computes or a library step makes, and with the recorded strides.
std::optional<ir::BufferWindow> ServingWindow(LoweringState& state, const View& view,
                                              const TensorType& type) {
  const ir::BufferKind kind = state.module.buffers[view.buffer].kind;
  if (kind == ir::BufferKind::kInput || kind == ir::BufferKind::kConstant) return std::nullopt;
  std::optional<ir::BufferWindow> window = AsWindow(state.module, view);
  if (!window || !SameStrides(type.sizes, window->strides, type.strides)) return std::nullopt;
  window->strides = type.strides;
  return window;
}

ir::BufferWindow OutputWindow(LoweringState& state, NodeContext& context, const View& view,
                              const TensorType& type,
                              absl::flat_hash_map<ir::BufferId, ir::BufferWindow>& taken) {
  if (std::optional<ir::BufferWindow> window = ServingWindow(state, view, type)) {
    const auto [it, is_first] = taken.try_emplace(window->buffer, *window);
    if (is_first || SameWindow(it->second, *window)) {
      ir::Buffer& buffer = state.module.buffers[window->buffer];
      if (buffer.kind == ir::BufferKind::kTemp) buffer.kind = ir::BufferKind::kOutput;
      return *window;
    }
  }
  ir::IntContext& ints = context.ints();
  const Ints strides = IsDense(ints, type.sizes, type.strides)
                           ? type.strides
                           : state.module.ContiguousStrides(type.sizes);
  const View copy = CopyOf(state, context, view, strides, ir::BufferKind::kOutput);
  return {copy.buffer, type.sizes, strides, ints.Const(0)};
}

}  // namespace

absl::Status AddOutputs(LoweringState& state) {
  // One window a buffer: an output that overlaps another one is a copy.
  absl::flat_hash_map<ir::BufferId, ir::BufferWindow> taken;
  // An output that is there twice is one copy.
  absl::flat_hash_map<int, ir::BufferWindow> by_value;
  for (size_t i = 0; i < state.graph.outputs.size(); ++i) {
    const graph::Output& output = state.graph.outputs[i];
    ir::ModuleOutput& out = state.module.outputs.emplace_back();
    if (const auto* size = std::get_if<ir::IntExpr>(&output)) {
      out.value = *size;
    } else if (const auto* ref = std::get_if<graph::ValueRef>(&output)) {
      const auto it = by_value.find(ref->id);
      if (it != by_value.end()) {
        out.value = it->second;
        continue;
      }
      graph::Node node;
      node.name = absl::StrCat("output_", i);
      NodeContext context(state, node);
      const ir::BufferWindow window =
          OutputWindow(state, context, *state.values[ref->id],
                       std::get<TensorType>(state.graph.values[ref->id]), taken);
      by_value[ref->id] = window;
      out.value = window;
    } else {
      out.value = ir::NoneArg{};
    }
  }
  return absl::OkStatus();
}

absl::Status AddMutations(LoweringState& state) {
  absl::flat_hash_set<ir::BufferId> mutated;
  for (const graph::Mutation& mutation : state.graph.mutations) {
    mutated.insert(state.values[mutation.input]->buffer);
  }
  graph::Node node;
  node.name = "mutation";
  NodeContext context(state, node);
  std::vector<View> sources;
  for (const graph::Mutation& mutation : state.graph.mutations) {
    View source = *state.values[mutation.value.id];
    // A value that views a mutated input must be read before any input changes.
    if (mutated.contains(source.buffer)) {
      source = CopyOf(state, context, source, state.module.ContiguousStrides(source.sizes),
                      ir::BufferKind::kTemp);
    }
    sources.push_back(std::move(source));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    const View& target = *state.values[state.graph.mutations[i].input];
    context.Pointwise(target,
                      [&](KernelBuilder& b, const Ints& at) { return b.Load(sources[i], at); });
  }
  return absl::OkStatus();
}

}  // namespace kiln::lowering
