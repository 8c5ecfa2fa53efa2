#include "compiler/lowering/library_step.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

ir::BufferWindow WholeWindow(ir::IntContext& ints, const ir::Module& module, ir::BufferId id) {
  const ir::Buffer& buffer = module.buffers[id];
  return {id, buffer.sizes, buffer.strides, ints.Const(0)};
}

absl::StatusOr<ir::LibraryArg> ConvertArg(LoweringState& state, NodeContext& context,
                                          const graph::Arg& arg) {
  ir::LibraryArg out;
  if (const auto* ref = std::get_if<graph::ValueRef>(&arg.value)) {
    const auto& type = std::get<graph::TensorType>(state.graph.values[ref->id]);
    if (!state.values[ref->id]) {
      return absl::InternalError(
          absl::StrCat("value ", ref->id, " of node '", context.node().name, "' was not lowered"));
    }
    const ir::BufferWindow window = WindowOrCopy(state, context, *state.values[ref->id], type);
    const bool is_copy = window.buffer != state.values[ref->id]->buffer;
    const bool is_node = ref->id >= static_cast<int>(state.graph.inputs.size());
    if (is_copy && is_node && state.storage.root[ref->id] == ref->id &&
        !state.storage.is_shared[ref->id]) {
      // Memory of its own in eager mode, too: whoever takes the value after this finds it there.
      state.values[ref->id] = WholeBuffer(state.module, window.buffer);
    }
    out.value = window;
  } else if (const auto* list = std::get_if<graph::ArgList>(&arg.value)) {
    ir::LibraryArgs items;
    for (const graph::Arg& item : *list) {
      KILN_ASSIGN_OR_RETURN(items.emplace_back(), ConvertArg(state, context, item));
    }
    out.value = std::move(items);
  } else if (const auto* i = std::get_if<int64_t>(&arg.value)) {
    out.value = context.ints().Const(*i);
  } else if (const auto* e = std::get_if<ir::IntExpr>(&arg.value)) {
    out.value = *e;
  } else if (const auto* d = std::get_if<double>(&arg.value)) {
    out.value = *d;
  } else if (const auto* c = std::get_if<std::complex<double>>(&arg.value)) {
    out.value = *c;
  } else if (const auto* b = std::get_if<bool>(&arg.value)) {
    out.value = *b;
  } else if (const auto* s = std::get_if<std::string>(&arg.value)) {
    out.value = *s;
  } else if (const auto* t = std::get_if<DType>(&arg.value)) {
    out.value = *t;
  } else {
    out.value = ir::NoneArg{};
  }
  return out;
}

}  // namespace

ir::BufferWindow WindowOrCopy(LoweringState& state, NodeContext& context, const View& view,
                              const graph::TensorType& type) {
  if (std::optional<ir::BufferWindow> window = AsWindow(state.module, view)) {
    if (SameStrides(type.sizes, window->strides, type.strides)) {
      // Strides of one-element dimensions are free: show those that eager would.
      window->strides = type.strides;
      return *window;
    }
  }
  ir::Buffer buffer;
  buffer.name = state.UniqueName(absl::StrCat(context.node().name, "_arg"));
  buffer.dtype = view.dtype;
  buffer.sizes = type.sizes;
  buffer.strides = IsDense(context.ints(), type.sizes, type.strides)
                       ? type.strides
                       : state.module.ContiguousStrides(type.sizes);
  const ir::BufferId id = state.module.AddBuffer(std::move(buffer));
  context.Pointwise(WholeBuffer(state.module, id),
                    [&](KernelBuilder& b, const Ints& at) { return b.Load(view, at); });
  return WholeWindow(context.ints(), state.module, id);
}

absl::Status AddLibraryStep(LoweringState& state, const graph::Node& node) {
  NodeContext context(state, node);
  ir::Library step{node.op, node.name, {}, {}, {}};
  for (const graph::Arg& arg : node.args) {
    KILN_ASSIGN_OR_RETURN(step.args.emplace_back(), ConvertArg(state, context, arg));
  }
  for (const auto& [name, arg] : node.kwargs) {
    KILN_ASSIGN_OR_RETURN(ir::LibraryArg converted, ConvertArg(state, context, arg));
    converted.name = name;
    step.args.push_back(std::move(converted));
  }
  for (size_t i = 0; i < node.results.size(); ++i) {
    if (!context.ResultUsed(i)) continue;
    const graph::TensorType& type = context.Result(i);
    ir::Buffer buffer{state.UniqueName(node.name), type.dtype, type.sizes, type.strides,
                      ir::BufferKind::kLibrary};
    const ir::BufferId id = state.module.AddBuffer(std::move(buffer));
    step.results.push_back(id);
    step.positions.push_back(static_cast<int>(i));
    context.SetResult(i, WholeBuffer(state.module, id));
  }
  if (step.results.empty() || step.positions.back() + 1 == static_cast<int>(step.results.size())) {
    step.positions.clear();
  }
  state.module.operations.emplace_back(std::move(step));
  return absl::OkStatus();
}

}  // namespace kiln::lowering
