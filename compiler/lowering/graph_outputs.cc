#include "compiler/lowering/graph_outputs.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/lowering/library_step.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using graph::TensorType;

View CopyToTemp(LoweringState& state, NodeContext& context, const View& view, const Ints& strides) {
  ir::Buffer buffer{state.UniqueName(context.node().name), view.dtype, view.sizes, strides,
                    ir::BufferKind::kTemp};
  const View copy = WholeBuffer(state.module, state.module.AddBuffer(std::move(buffer)));
  context.Pointwise(copy, [&](KernelBuilder& b, const Ints& at) { return b.Load(view, at); });
  return copy;
}

// Whether `view` is all of a temporary buffer with the sizes and strides of `other`.
bool HasLayoutOf(ir::Module& module, const View& view, ir::BufferId other) {
  const ir::Buffer &buffer = module.buffers[view.buffer], &like = module.buffers[other];
  if (buffer.kind != ir::BufferKind::kTemp || buffer.sizes != like.sizes ||
      buffer.strides != like.strides) {
    return false;
  }
  const std::optional<ir::BufferWindow> window = AsWindow(module, view);
  return window && window->offset.is_const(0) && window->sizes == like.sizes &&
         SameStrides(like.sizes, window->strides, like.strides);
}

// The root of the outputs that lie in a buffer; see storage.h.
using RootOfBuffer = absl::flat_hash_map<ir::BufferId, int>;

// Whether a value whose root is `root` is a view of the input that has that buffer, in eager mode
// as well, and the graph leaves that input as it was.
bool IsUnwrittenInput(const LoweringState& state, int root, ir::BufferId buffer) {
  if (!state.values[root] || root >= static_cast<int>(state.graph.inputs.size())) return false;
  return state.values[root]->buffer == buffer &&
         std::none_of(state.graph.mutations.begin(), state.graph.mutations.end(),
                      [&](const graph::Mutation& mutation) { return mutation.input == root; });
}

// The window of `view`, where it may serve as output without a copy: on an input that it views, or
// on a buffer that a kernel of this graph computes or a library step makes; with the recorded
// strides; and where no output is in that buffer that is memory of its own in eager mode.
std::optional<ir::BufferWindow> ServingWindow(LoweringState& state, const View& view,
                                              const TensorType& type, int root,
                                              const RootOfBuffer& taken) {
  const ir::BufferKind kind = state.module.buffers[view.buffer].kind;
  if (kind == ir::BufferKind::kConstant) return std::nullopt;
  if (kind == ir::BufferKind::kInput && !IsUnwrittenInput(state, root, view.buffer)) {
    return std::nullopt;
  }
  const auto other = taken.find(view.buffer);
  if (other != taken.end() && other->second != root) return std::nullopt;
  std::optional<ir::BufferWindow> window = AsWindow(state.module, view);
  if (!window || !SameStrides(type.sizes, window->strides, type.strides)) return std::nullopt;
  window->strides = type.strides;
  return window;
}

// True where no two elements can share a place: walking from the smallest stride, each reaches past
// the dimensions before it. A stride may have sizes that count as 1 where they are 0: see IsDense.
bool IsNonOverlapping(ir::IntContext& ints, const Ints& sizes, const Ints& strides) {
  const std::vector<int> order = MemoryOrder(ints, sizes, strides);  // largest stride first
  ir::IntExpr reach = ints.Const(1), positive = reach;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    if (sizes[*dim].is_const(1)) continue;
    const ir::IntExpr stride = strides[*dim];
    if (!ints.ProvablyLessEqual(reach, stride) && !ints.ProvablyLessEqual(positive, stride)) {
      return false;
    }
    reach = ints.Mul(stride, sizes[*dim]);
    positive = ints.Mul(stride, ints.Max(sizes[*dim], ints.Const(1)));
  }
  return true;
}

// Kernels cannot copy opaque types: the client's library can. Such a value is a whole buffer, for
// its views are library steps, too.
ir::BufferWindow CloneToOutput(LoweringState& state, NodeContext& context, const View& view,
                               const TensorType& type) {
  ir::Buffer buffer{state.UniqueName(context.node().name), view.dtype, type.sizes, type.strides,
                    ir::BufferKind::kLibrary};
  const ir::BufferId id = state.module.AddBuffer(std::move(buffer));
  ir::LibraryArg source{"", WindowOrCopy(state, context, view, type)};
  state.module.operations.emplace_back(
      ir::Library{"aten.clone.default", context.node().name, {std::move(source)}, {id}, {}});
  return {id, type.sizes, type.strides, context.ints().Const(0)};
}

// A copy with the recorded strides, gaps and expanded dimensions (stride 0) included, as users and
// the backward graph expect them. Contiguous where the strides make elements overlap otherwise.
ir::BufferWindow CopyToOutput(LoweringState& state, NodeContext& context, const View& view,
                              const TensorType& type) {
  ir::IntContext& ints = context.ints();
  ir::Buffer buffer{state.UniqueName(context.node().name), view.dtype, type.sizes, type.strides,
                    ir::BufferKind::kOutput};
  for (size_t d = 0; d < buffer.sizes.size(); ++d) {
    if (type.strides[d].is_const(0)) buffer.sizes[d] = ints.Const(1);
  }
  ir::BufferWindow window{-1, type.sizes, type.strides, ints.Const(0)};
  if (!IsNonOverlapping(ints, buffer.sizes, buffer.strides)) {
    buffer.sizes = type.sizes;
    buffer.strides = window.strides = state.module.ContiguousStrides(type.sizes);
  }
  window.buffer = state.module.AddBuffer(std::move(buffer));
  context.Pointwise(WholeBuffer(state.module, window.buffer),
                    [&](KernelBuilder& b, const Ints& at) { return b.Load(view, at); });
  return window;
}

// Outputs view one buffer where they view one tensor in eager mode, and only there.
absl::StatusOr<ir::BufferWindow> OutputWindow(LoweringState& state, NodeContext& context,
                                              const View& view, const TensorType& type, int root,
                                              RootOfBuffer& taken, bool library_steps) {
  if (std::optional<ir::BufferWindow> window = ServingWindow(state, view, type, root, taken)) {
    taken.emplace(window->buffer, root);
    ir::Buffer& buffer = state.module.buffers[window->buffer];
    if (buffer.kind == ir::BufferKind::kTemp) buffer.kind = ir::BufferKind::kOutput;
    return *window;
  }
  if (!IsOpaque(view.dtype)) return CopyToOutput(state, context, view, type);
  if (library_steps) return CloneToOutput(state, context, view, type);
  return absl::UnimplementedError(absl::StrCat(context.node().name, " is ", DTypeName(type.dtype),
                                               ", which needs a library to copy it"));
}

}  // namespace

absl::Status AddOutputs(LoweringState& state, bool library_steps) {
  // An output that is there twice is one copy.
  absl::flat_hash_map<int, ir::BufferWindow> by_value;
  RootOfBuffer taken;
  const std::vector<graph::Output>& outputs = state.graph.outputs;
  const size_t first = state.module.outputs.size();
  state.module.outputs.resize(first + outputs.size());
  // Those that share memory choose first: another one can be copied without anybody noticing.
  for (const bool shared : {true, false}) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      ir::ModuleOutput& out = state.module.outputs[first + i];
      if (const auto* size = std::get_if<ir::IntExpr>(&outputs[i])) out.value = *size;
      const auto* ref = std::get_if<graph::ValueRef>(&outputs[i]);
      if (ref == nullptr || state.storage.is_shared[state.storage.root[ref->id]] != shared)
        continue;
      const auto it = by_value.find(ref->id);
      if (it != by_value.end()) {
        out.value = it->second;
        continue;
      }
      graph::Node node;
      node.name = absl::StrCat("output_", i);
      NodeContext context(state, node);
      const auto& type = std::get<TensorType>(state.graph.values[ref->id]);
      KILN_ASSIGN_OR_RETURN(const ir::BufferWindow window,
                            OutputWindow(state, context, *state.values[ref->id], type,
                                         state.storage.root[ref->id], taken, library_steps));
      by_value[ref->id] = window;
      out.value = window;
    }
  }
  return absl::OkStatus();
}

absl::Status AddMutations(LoweringState& state) {
  for (const graph::Mutation& mutation : state.graph.mutations) {
    const DType dtype = state.values[mutation.input]->dtype;
    if (IsOpaque(dtype)) {
      return absl::UnimplementedError(absl::StrCat(
          "input ", mutation.input, " is ", DTypeName(dtype), ", which no kernel writes in place"));
    }
  }
  graph::Node node;
  node.name = "mutation";
  NodeContext context(state, node);
  std::vector<View> values;
  absl::flat_hash_set<ir::BufferId> taken;
  for (const graph::Mutation& mutation : state.graph.mutations) {
    const View& source = *state.values[mutation.value.id];
    const View& target = *state.values[mutation.input];
    const bool serves = HasLayoutOf(state.module, source, target.buffer);
    values.push_back(
        serves && taken.insert(source.buffer).second
            ? source
            : CopyToTemp(state, context, source, state.module.buffers[target.buffer].strides));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const View& target = *state.values[state.graph.mutations[i].input];
    context.Pointwise(target,
                      [&](KernelBuilder& b, const Ints& at) { return b.Load(values[i], at); });
  }
  return absl::OkStatus();
}

}  // namespace kiln::lowering
