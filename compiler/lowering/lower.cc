#include "compiler/lowering/lower.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "compiler/ir/index_nodes.h"
#include "compiler/lowering/graph_outputs.h"
#include "compiler/lowering/library_step.h"
#include "compiler/lowering/node_context.h"
#include "compiler/lowering/registry.h"
#include "compiler/lowering/together.h"
#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using graph::Graph;
using graph::Node;
using graph::TensorType;

const TensorType* AsTensor(const Graph& graph, graph::ValueRef value) {
  return std::get_if<TensorType>(&graph.values[value.id]);
}

void ForEachValue(const graph::Arg& arg, const std::function<void(int)>& visit) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&arg.value)) visit(ref->id);
  if (const auto* list = std::get_if<graph::ArgList>(&arg.value)) {
    for (const graph::Arg& item : *list) ForEachValue(item, visit);
  }
}

std::vector<bool> UsedValues(const Graph& graph) {
  std::vector<bool> used(graph.values.size(), false);
  const auto mark = [&](int value) { used[value] = true; };
  for (const Node& node : graph.nodes) {
    for (const graph::Arg& arg : node.args) ForEachValue(arg, mark);
    for (const auto& [name, arg] : node.kwargs) ForEachValue(arg, mark);
  }
  for (const graph::Output& output : graph.outputs) {
    if (const auto* ref = std::get_if<graph::ValueRef>(&output)) used[ref->id] = true;
  }
  for (const graph::Mutation& mutation : graph.mutations) used[mutation.value.id] = true;
  return used;
}

void AddInputs(LoweringState& state, bool mark_parameters) {
  const Graph& graph = state.graph;
  const auto add = [&](size_t value, absl::string_view name, ir::BufferKind kind, size_t index) {
    const auto* type = std::get_if<TensorType>(&graph.values[value]);
    if (type == nullptr) return;
    ir::Buffer buffer{state.UniqueName(name), type->dtype, type->sizes,
                      type->strides,          kind,        static_cast<int>(index)};
    state.values[value] = WholeBuffer(state.module, state.module.AddBuffer(std::move(buffer)));
  };
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    add(i, graph.inputs[i].name, ir::BufferKind::kInput, i);
  }
  if (mark_parameters) {
    std::vector<bool> written(graph.inputs.size());
    for (const graph::Mutation& mutation : graph.mutations) written[mutation.input] = true;
    for (ir::Buffer& buffer : state.module.buffers) {
      buffer.parameter =
          graph.inputs[buffer.index].role == graph::InputRole::kParameter && !written[buffer.index];
    }
  }
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    add(graph.inputs.size() + i, graph.constants[i].name, ir::BufferKind::kConstant, i);
  }
}

// Whether numbers take part that kernels cannot compute with.
bool HasOpaque(const Graph& graph, const graph::Arg& arg) {
  if (const auto* ref = std::get_if<graph::ValueRef>(&arg.value)) {
    const TensorType* type = AsTensor(graph, *ref);
    return type != nullptr && IsOpaque(type->dtype);
  }
  if (const auto* list = std::get_if<graph::ArgList>(&arg.value)) {
    return std::any_of(list->begin(), list->end(),
                       [&](const graph::Arg& item) { return HasOpaque(graph, item); });
  }
  if (std::holds_alternative<std::complex<double>>(arg.value)) return true;
  const auto* dtype = std::get_if<DType>(&arg.value);
  return dtype != nullptr && IsOpaque(*dtype);
}

// Results that nobody reads do not count, as the random state of an attention.
bool HasOpaque(const LoweringState& state, const Node& node) {
  const Graph& graph = state.graph;
  const auto arg_is = [&](const graph::Arg& arg) { return HasOpaque(graph, arg); };
  return std::any_of(node.args.begin(), node.args.end(), arg_is) ||
         std::any_of(node.kwargs.begin(), node.kwargs.end(),
                     [&](const auto& named) { return arg_is(named.second); }) ||
         std::any_of(node.results.begin(), node.results.end(), [&](graph::ValueRef result) {
           const TensorType* type = AsTensor(graph, result);
           return state.used[result.id] && type != nullptr && IsOpaque(type->dtype);
         });
}

// "aten.add_.Tensor" writes its argument; capture makes such calls functional or declares a
// mutation, so one that is left cannot be ordered against lazily read views.
bool IsInPlace(absl::string_view op) {
  const std::vector<absl::string_view> parts = absl::StrSplit(op, '.');
  const absl::string_view base = parts.size() > 1 ? parts[1] : parts[0];
  return absl::EndsWith(base, "_") && !absl::EndsWith(base, "__");
}

const Lowering* FindLowering(absl::string_view op) {
  absl::ConsumePrefix(&op, "aten.");
  const auto it = Lowerings().find(op);
  return it == Lowerings().end() ? nullptr : &it->second;
}

absl::Status Unsupported(const Node& node, absl::string_view why) {
  v1::ErrorDetail detail;
  detail.set_reason(v1::ErrorDetail::REASON_UNSUPPORTED);
  detail.set_node(node.name);
  detail.set_op(node.op);
  return WithDetail(absl::UnimplementedError(absl::StrCat("node '", node.name, "': operator ",
                                                          node.op, " has no lowering", why)),
                    detail);
}

bool LeavesOutResults(const Graph& graph, const Node& node) {
  return std::any_of(node.results.begin(), node.results.end(), [&](graph::ValueRef result) {
    return std::holds_alternative<graph::None>(graph.values[result.id]);
  });
}

// Where every result is empty there is nothing to compute, whatever the operator: a fill of no
// elements defines the buffer.
bool LowerEmpty(NodeContext& context) {
  if (context.num_results() == 0 || !context.CheckResults(context.num_results()).ok()) return false;
  for (size_t i = 0; i < context.num_results(); ++i) {
    if (!IsEmpty(context.Result(i).sizes) || IsOpaque(context.Result(i).dtype)) return false;
  }
  for (size_t i = 0; i < context.num_results(); ++i) {
    if (!context.ResultUsed(i)) continue;
    context.PointwiseResult(
        i, [&](KernelBuilder& b, const Ints&) { return b.ConstInt(context.Result(i).dtype, 0); });
  }
  return true;
}

// Some operators have an empty result among others (batch norm's saved statistics).
void FillEmptyResults(LoweringState& state, NodeContext& context) {
  for (size_t i = 0; i < context.num_results(); ++i) {
    if (!context.ResultUsed(i) || state.values[context.node().results[i].id]) continue;
    if (!context.HasResult(i) || !IsEmpty(context.Result(i).sizes)) continue;
    context.PointwiseResult(
        i, [&](KernelBuilder& b, const Ints&) { return b.ConstInt(context.Result(i).dtype, 0); });
  }
}

absl::Status CheckResultsSet(const LoweringState& state, const NodeContext& context) {
  for (size_t i = 0; i < context.num_results(); ++i) {
    if (context.ResultUsed(i) && !state.values[context.node().results[i].id]) {
      return context.Decline("of a result that is used");
    }
  }
  return absl::OkStatus();
}

// A lowering computes in the types that the graph declares. Where ATen's operator never gives
// these, as integers of a division, an operation is left that they are nothing for.
absl::Status CheckTypes(const NodeContext& context, const ir::Operation& operation) {
  const auto* kernel = std::get_if<ir::Kernel>(&operation);
  if (kernel == nullptr) return absl::OkStatus();
  std::vector<DType> types(static_cast<size_t>(kernel->num_values));
  for (const ir::Phase& phase : kernel->phases) {
    for (const ir::Inst& inst : phase.body) {
      if (inst.result != ir::kNoValue) types[inst.result] = inst.dtype;
      if (inst.operands.empty()) continue;
      const DType operand = types[inst.operands.back()];
      if (!ir::Takes(inst.op, operand)) {
        return context.Decline(absl::StrCat("in type ", std::string(DTypeName(operand))));
      }
    }
  }
  return absl::OkStatus();
}

// OK where the node was lowered natively. Leaves no trace in the module where it was not.
absl::Status LowerNatively(LoweringState& state, const Node& node) {
  const Lowering* lowering = FindLowering(node.op);
  if (lowering == nullptr) return absl::UnimplementedError("");
  if (HasOpaque(state, node)) return absl::UnimplementedError(" for numbers of such a type");
  const size_t num_operations = state.module.operations.size();
  const size_t num_buffers = state.module.buffers.size();
  NodeContext context(state, node);
  if (!LeavesOutResults(state.graph, node)) {
    KILN_RETURN_IF_ERROR(context.CheckResults(node.results.size()));
  } else if (!HasOutputMask(absl::StripPrefix(node.op, "aten."))) {
    return absl::UnimplementedError(" where results are left out");
  }
  absl::Status status = (*lowering)(context);
  if (status.ok()) {
    FillEmptyResults(state, context);
    status = CheckResultsSet(state, context);
  }
  for (size_t i = num_operations; status.ok() && i < state.module.operations.size(); ++i) {
    status = CheckTypes(context, state.module.operations[i]);
  }
  if (!status.ok()) {
    state.module.operations.resize(num_operations);
    state.module.buffers.resize(num_buffers);
    for (const graph::ValueRef result : node.results) state.values[result.id].reset();
    if (absl::IsUnimplemented(status)) {
      return absl::UnimplementedError(absl::StrCat(" for this case: ", status.message()));
    }
  }
  return status;
}

// Results that several outputs lie in, and that were lowered to an index into something else.
void MaterializeShared(LoweringState& state, const Node& node, size_t buffers_before) {
  NodeContext context(state, node);
  for (size_t i = 0; i < node.results.size(); ++i) {
    const int id = node.results[i].id;
    if (!state.storage.is_shared[id] || !state.values[id]) continue;
    const View view = *state.values[id];
    if (view.buffer >= static_cast<int>(buffers_before)) continue;
    context.PointwiseResult(i, [&](KernelBuilder& b, const Ints& at) { return b.Load(view, at); });
  }
}

// Where a result is a view of an earlier buffer by too long expressions: lowers the node again on
// copies of those arguments that are more than a buffer themselves.
absl::Status CutLongViews(LoweringState& state, const Node& node, size_t num_operations,
                          size_t num_buffers) {
  const bool is_long =
      std::any_of(node.results.begin(), node.results.end(), [&](graph::ValueRef result) {
        const std::optional<View>& view = state.values[result.id];
        return view && view->buffer < static_cast<int>(num_buffers) &&
               ir::IndexNodes(view->indices) > ir::kMostIndexNodes;
      });
  if (!is_long) return absl::OkStatus();
  NodeContext context(state, node);
  std::vector<std::pair<int, View>> originals;
  std::vector<int> arguments;
  for (const graph::Arg& arg : node.args) {
    ForEachValue(arg, [&](int value) { arguments.push_back(value); });
  }
  for (int value : arguments) {
    const std::optional<View>& view = state.values[value];
    if (!view || IsOpaque(view->dtype) || ir::IndexNodes(view->indices) <= view->indices.size()) {
      continue;
    }
    if (originals.empty()) {
      state.module.operations.resize(num_operations);
      state.module.buffers.resize(num_buffers);
    }
    originals.emplace_back(value, *view);
    const View source = *view, copy = context.NewTemp(source.sizes, source.dtype);
    context.Pointwise(copy, [&](KernelBuilder& b, const Ints& at) { return b.Load(source, at); });
    state.values[value] = copy;
  }
  if (originals.empty()) return absl::OkStatus();
  const absl::Status status = LowerNatively(state, node);
  // Elsewhere they stay what they are, as outputs that share an input's memory.
  for (auto& [value, view] : originals) state.values[value] = std::move(view);
  return status;
}

// Whether the node's operations, from number `first` on, are taken back in favour of a library
// step.
bool IsLeftToLibraries(LoweringState& state, const LoweringOptions& options,
                       const std::vector<bool>& goes_on, const Node& node, size_t first) {
  if (!options.library_steps || !options.left_to_libraries || IsInPlace(node.op)) return false;
  if (options.attention_by_libraries && absl::StrContains(node.op, "scaled_dot_product")) {
    return true;
  }
  const bool on =
      absl::c_any_of(node.results, [&](graph::ValueRef result) { return goes_on[result.id]; });
  const std::vector<ir::Operation>& all = state.module.operations;
  return std::any_of(all.begin() + first, all.end(), [&](const ir::Operation& operation) {
    return absl::c_any_of(KernelsOf(operation), [&](const ir::Kernel& kernel) {
      return options.left_to_libraries(state.module, kernel, on);
    });
  });
}

// Whether the device runs the operations from `begin` to `end` as one launch.
bool AreTakenTogether(LoweringState& state, const LoweringOptions& options, size_t begin,
                      size_t end) {
  if (!options.taken_together || end < begin + 2) return false;
  std::vector<const ir::Kernel*> kernels;
  for (size_t i = begin; i < end; ++i) {
    const auto* kernel = std::get_if<ir::Kernel>(&state.module.operations[i]);
    if (kernel == nullptr) return false;
    kernels.push_back(kernel);
  }
  return options.taken_together(state.module, kernels);
}

// By value: whether some node that reads it, by way of views, works on its elements one by one.
std::vector<bool> FindGoingOn(const Graph& graph) {
  static const auto* const pointwise = [] {
    auto* registry = new Registry;
    RegisterPointwise(*registry);
    RegisterBinary(*registry);
    RegisterActivations(*registry);
    return registry;
  }();
  static const auto* const views = [] {
    auto* registry = new Registry;
    RegisterViews(*registry);
    return registry;
  }();
  std::vector<bool> goes_on(graph.values.size(), false);
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const absl::string_view op = absl::StripPrefix(node->op, "aten.");
    const bool on =
        pointwise->contains(op) ||
        (views->contains(op) &&
         absl::c_any_of(node->results, [&](graph::ValueRef result) { return goes_on[result.id]; }));
    if (!on) continue;
    const auto mark = [&](int value) { goes_on[value] = true; };
    for (const graph::Arg& arg : node->args) ForEachValue(arg, mark);
    for (const auto& [name, arg] : node->kwargs) ForEachValue(arg, mark);
  }
  return goes_on;
}

absl::Status LowerNode(LoweringState& state, const LoweringOptions& options,
                       const std::vector<bool>& goes_on, const Node& node) {
  const auto is_size = [&](graph::ValueRef result) {
    return std::holds_alternative<ir::IntExpr>(state.graph.values[result.id]);
  };
  // Sizes are known as expressions; an operator that yields only them computes nothing. One that
  // reads a size out of a tensor would need its value before the run.
  if (!node.results.empty() && std::all_of(node.results.begin(), node.results.end(), is_size)) {
    if (absl::StrContains(node.op, "_local_scalar_dense") || absl::StrContains(node.op, ".item")) {
      return Unsupported(node, ": it makes a size out of a tensor's value");
    }
    return absl::OkStatus();
  }
  NodeContext context(state, node);
  if (LowerEmpty(context)) return absl::OkStatus();
  const size_t num_buffers = state.module.buffers.size();
  const size_t num_operations = state.module.operations.size();
  state.together_begin = num_operations;
  state.together_end = SIZE_MAX;
  absl::Status status = LowerNatively(state, node);
  if (status.ok()) {
    const size_t end = std::min(state.together_end, state.module.operations.size());
    if (AreTakenTogether(state, options, state.together_begin, end)) {
      RunTogether(state, state.together_begin, end, num_buffers);
      return absl::OkStatus();
    }
  }
  if (status.ok() && IsLeftToLibraries(state, options, goes_on, node, num_operations)) {
    state.module.operations.resize(num_operations);
    state.module.buffers.resize(num_buffers);
    return AddLibraryStep(state, node);
  }
  if (status.ok()) status = CutLongViews(state, node, num_operations, num_buffers);
  if (status.ok()) MaterializeShared(state, node, num_buffers);
  if (!absl::IsUnimplemented(status)) return status;
  if (!options.library_steps) return Unsupported(node, status.message());
  if (IsInPlace(node.op)) return Unsupported(node, ": it writes its argument in place");
  return AddLibraryStep(state, node);
}

}  // namespace

absl::Status Lower(const Graph& graph, const LoweringOptions& options, ir::Module& module) {
  LoweringState state{graph,
                      module,
                      {},
                      UsedValues(graph),
                      {},
                      FindStorage(graph),
                      options.contracts_few_rows,
                      options.checks_divisors,
                      options.lanes_beside_windows};
  state.values.resize(graph.values.size());
  AddInputs(state, options.mark_parameters);
  const std::vector<bool> goes_on = FindGoingOn(graph);
  for (const Node& node : graph.nodes) {
    KILN_RETURN_IF_ERROR(LowerNode(state, options, goes_on, node));
    if (module.ints->IsExhausted()) break;  // the stage's caller reports it
  }
  KILN_RETURN_IF_ERROR(AddOutputs(state, options.library_steps));
  return AddMutations(state);
}

std::vector<std::string> LoweredOps() {
  std::vector<std::string> ops;
  for (const auto& [name, lowering] : Lowerings()) {
    const bool is_atens = !absl::StartsWith(name, "prims.") && !absl::StartsWith(name, "kiln.");
    ops.push_back(is_atens ? absl::StrCat("aten.", name) : name);
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace kiln::lowering
