// The library steps of a program against the calls of its graph: what runs in the user's process
// with the user's tensors is named by the graph alone.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/contract.h"
#include "client/runtime/strided_copy.h"
#include "proto/base/random_inputs.h"
#include "proto/base/status_macros.h"

namespace kiln::runtime {
namespace {

constexpr absl::string_view kClone = "aten.clone.default";
constexpr size_t kNoCall = std::numeric_limits<size_t>::max();

bool SameBits(double a, double b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

bool IsNumber(const v1::SymInt& asked, int64_t got, absl::Span<const int64_t> symbols) {
  const absl::StatusOr<int64_t> value = EvaluateSymInt(asked, symbols);
  return value.ok() && *value == got;
}

bool SameScalar(const v1::Argument& asked, const v1::Argument& got) {
  switch (asked.kind_case()) {
    case v1::Argument::kFloat:
      return got.kind_case() == v1::Argument::kFloat && SameBits(asked.float_(), got.float_());
    case v1::Argument::kComplex:
      return got.has_complex() && SameBits(asked.complex().real(), got.complex().real()) &&
             SameBits(asked.complex().imag(), got.complex().imag());
    case v1::Argument::kBool:
      return got.kind_case() == v1::Argument::kBool && asked.bool_() == got.bool_();
    case v1::Argument::kString:
      return got.kind_case() == v1::Argument::kString && asked.string() == got.string();
    case v1::Argument::kDtype:
      return got.kind_case() == v1::Argument::kDtype && asked.dtype() == got.dtype();
    default:
      return got.has_none();
  }
}

// REQUIRES: as many dimensions.
bool HasStrides(const v1::TensorType& asked, const PlanTensor& got,
                absl::Span<const int64_t> symbols) {
  for (int d = 0; d < asked.strides_size(); ++d) {
    if (!IsNumber(asked.strides(d), got.strides[static_cast<size_t>(d)], symbols)) return false;
  }
  return true;
}

// The view's tensor without the last elements of its rows, and nothing where such are not nobody's:
// they end the rows of a buffer of the workspace.
std::optional<PlanTensor> WithoutPadding(const Plan& plan, const PlanView& view, int64_t padding) {
  const PlanBuffer& buffer = plan.buffers[static_cast<size_t>(view.buffer)];
  PlanTensor out = view.type;
  const auto along = std::find(out.strides.begin(), out.strides.end(), 1);
  if (buffer.kind != BufferKind::kWorkspace || along == out.strides.end()) return std::nullopt;
  int64_t& row = out.sizes[static_cast<size_t>(along - out.strides.begin())];
  const int64_t longer = row;
  const PlanTensor& type = buffer.type;
  if (padding >= longer || type.sizes.empty() || type.sizes.back() != longer ||
      view.offset % longer != 0 || !IsContiguous(type.sizes, type.strides)) {
    return std::nullopt;
  }
  row = longer - padding;
  for (int64_t& stride : out.strides) {
    if (stride == 1) continue;
    if (stride % longer != 0) return std::nullopt;
    stride = stride / longer * row;
  }
  return out;
}

// One step's arguments against a node's. The plan has the step's tensors and numbers in the order
// of its arguments.
class ArgMatcher {
 public:
  using Types = absl::flat_hash_map<uint32_t, v1::ValueType>;
  using IsTypeFn = absl::FunctionRef<bool(const PlanTensor&, uint32_t)>;
  ArgMatcher(const Plan& plan, const PlanLibrary& at, const Types& types, IsTypeFn is_type)
      : plan_(plan), at_(at), types_(types), is_type_(is_type) {}

  bool Match(const v1::Argument& asked, const v1::LibraryStep::Arg& got) {
    if (asked.has_list()) {
      if (!got.has_list() || asked.list().items_size() != got.list().items_size()) return false;
      for (int i = 0; i < asked.list().items_size(); ++i) {
        if (!Match(asked.list().items(i), got.list().items(i))) return false;
      }
      return true;
    }
    if (asked.has_value()) return MatchValue(asked.value(), got);
    if (!got.has_scalar()) return false;
    const v1::Argument& scalar = got.scalar();
    if (asked.has_sym_int()) return scalar.has_sym_int() && TakeNumber(asked.sym_int());
    if (asked.kind_case() == v1::Argument::kInt) {
      v1::SymInt number;
      number.set_value(asked.int_());
      return scalar.has_sym_int() && TakeNumber(number);
    }
    return SameScalar(asked, scalar);
  }

 private:
  bool MatchValue(uint32_t value, const v1::LibraryStep::Arg& got) {
    const v1::ValueType& type = types_.at(value);
    if (type.has_sym_int()) {
      return got.has_scalar() && got.scalar().has_sym_int() && TakeNumber(type.sym_int());
    }
    if (!got.has_tensor() || next_tensor_ == at_.tensors.size()) return false;
    const PlanView& view = at_.tensors[next_tensor_++];
    PlanTensor tensor = view.type;
    if (const int64_t padding = got.tensor().row_padding(); padding > 0) {
      std::optional<PlanTensor> without = WithoutPadding(plan_, view, padding);
      if (!without) return false;
      tensor = *std::move(without);
    }
    return is_type_(tensor, value) && (HasStrides(type.tensor(), tensor, plan_.symbols) ||
                                       IsContiguous(tensor.sizes, tensor.strides));
  }

  bool TakeNumber(const v1::SymInt& asked) {
    return next_number_ < at_.ints.size() &&
           IsNumber(asked, at_.ints[next_number_++], plan_.symbols);
  }

  const Plan& plan_;
  const PlanLibrary& at_;
  const Types& types_;
  IsTypeFn is_type_;
  size_t next_tensor_ = 0, next_number_ = 0;
};

// Gives `call` a node of its own and says whether there is one. A node whose argument is strided is
// also called with a contiguous one, so calls that came before may have to take other nodes: an
// augmenting path of a bipartite matching, breadth first.
bool TakeNode(size_t call, absl::FunctionRef<bool(size_t call, size_t node)> is_call,
              std::vector<size_t>& call_of) {
  for (size_t node = 0; node < call_of.size(); ++node) {
    if (call_of[node] == kNoCall && is_call(call, node)) {
      call_of[node] = call;
      return true;
    }
  }
  std::vector<size_t> queue = {call}, taker(call_of.size(), kNoCall);  // of each node seen
  absl::flat_hash_map<size_t, size_t> node_of;                         // of the calls in the queue
  for (size_t at = 0; at < queue.size(); ++at) {
    for (size_t node = 0; node < call_of.size(); ++node) {
      if (taker[node] != kNoCall || !is_call(queue[at], node)) continue;
      taker[node] = queue[at];
      if (call_of[node] != kNoCall) {
        node_of[call_of[node]] = node;
        queue.push_back(call_of[node]);
        continue;
      }
      for (size_t free = node;;) {
        const size_t moved = taker[free];
        call_of[free] = moved;
        if (moved == call) return true;
        free = node_of.at(moved);
      }
    }
  }
  return false;
}

}  // namespace

bool Contract::IsType(const Plan& plan, const PlanTensor& at, uint32_t value) const {
  const v1::TensorType& type = types_.at(value).tensor();
  if (type.dtype() != DTypeToProto(at.dtype) ||
      static_cast<size_t>(type.sizes_size()) != at.sizes.size() ||
      type.strides_size() != type.sizes_size()) {
    return false;
  }
  for (int d = 0; d < type.sizes_size(); ++d) {
    const absl::StatusOr<int64_t> size = EvaluateSymInt(type.sizes(d), plan.symbols);
    if (!size.ok() || std::max<int64_t>(*size, 0) != at.sizes[static_cast<size_t>(d)]) return false;
  }
  return true;
}

bool Contract::IsCall(const Plan& plan, const PlanLibrary& at, const v1::LibraryStep& step,
                      size_t number) const {
  const v1::Node& node = nodes_[number];
  if (step.op() != node.op() || step.args_size() != node.args_size() ||
      step.kwargs_size() != node.kwargs_size()) {
    return false;
  }
  // Named, because the matcher refers to it.
  const auto is_type = [&](const PlanTensor& tensor, uint32_t value) {
    return IsType(plan, tensor, value);
  };
  ArgMatcher matcher(plan, at, types_, is_type);
  for (int i = 0; i < node.args_size(); ++i) {
    if (!matcher.Match(node.args(i), step.args(i))) return false;
  }
  // The key is blind to the order of names, the plan is in the step's.
  for (const v1::LibraryStep::NamedArg& got : step.kwargs()) {
    const auto asked = std::find_if(node.kwargs().begin(), node.kwargs().end(),
                                    [&](const auto& arg) { return arg.name() == got.name(); });
    if (asked == node.kwargs().end() || !matcher.Match(asked->value(), got.value())) return false;
  }
  for (int i = 0; i < step.results_size(); ++i) {
    const int position =
        step.positions_size() > 0 ? static_cast<int>(std::min(step.positions(i), 1u << 30)) : i;
    if (position >= node.results_size() || !node.results(position).has_tensor()) return false;
    const PlanBuffer& buffer = plan.buffers[static_cast<size_t>(at.results[i])];
    const uint32_t value = first_results_[number] + static_cast<uint32_t>(position);
    if (!IsType(plan, buffer.type, value)) return false;
  }
  return true;
}

absl::Status Contract::CheckLibrarySteps(const Plan& plan) const {
  std::vector<const v1::LibraryStep*> calls;
  std::vector<size_t> call_of(nodes_.size(), kNoCall);
  for (const v1::Step& step : program_.steps()) {
    if (!step.has_library()) continue;
    const size_t number = calls.size();
    calls.push_back(&step.library());
    const auto is_call = [&](size_t call, size_t node) {
      return IsCall(plan, plan.libraries[call], *calls[call], node);
    };
    if (TakeNode(number, is_call, call_of)) continue;
    // A copy into an output is no call of the graph's.
    const v1::LibraryStep& call = step.library();
    const PlanLibrary& at = plan.libraries[number];
    const bool is_copy = call.op() == kClone && at.tensors.size() == 1 && call.args_size() == 1 &&
                         call.kwargs_size() == 0 && at.results.size() == 1 &&
                         call.positions_size() == 0;
    if (is_copy) {
      const PlanTensor& from = at.tensors[0].type;
      const PlanTensor& to = plan.buffers[static_cast<size_t>(at.results[0])].type;
      if (from.dtype == to.dtype && from.sizes == to.sizes) continue;
    }
    return absl::DataLossError(absl::StrCat("the artifact is not of this graph: library step ",
                                            call.op(), " (node '", call.node(),
                                            "') is no call of it"));
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
