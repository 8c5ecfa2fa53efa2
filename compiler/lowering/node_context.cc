#include "compiler/lowering/node_context.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/base/error_detail.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {

using graph::Arg;
using ir::IntExpr;

std::string LoweringState::UniqueName(absl::string_view base) {
  std::string safe(base);
  for (char& c : safe) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  if (safe.empty() || absl::ascii_isdigit(static_cast<unsigned char>(safe[0]))) safe.insert(0, "v");
  std::string name = safe;
  for (int n = 2; !names.insert(name).second; ++n) name = absl::StrCat(safe, "_", n);
  return name;
}

absl::Status NodeContext::BadGraph(absl::string_view what, absl::string_view expected) const {
  return BadGraphError(node_.name, node_.op, what, expected);
}

absl::Status NodeContext::Decline(absl::string_view why) const {
  return absl::UnimplementedError(why);
}

absl::Status NodeContext::WrongArgument(absl::string_view name, absl::string_view expected) const {
  return BadGraph(absl::StrCat("the argument '", name, "' is absent or of another kind"), expected);
}

const Arg* NodeContext::Find(size_t position, absl::string_view name) const {
  const Arg* found = nullptr;
  if (position < node_.args.size()) {
    found = &node_.args[position];
  } else {
    for (const auto& [key, arg] : node_.kwargs) {
      if (key == name) found = &arg;
    }
  }
  if (found != nullptr && std::holds_alternative<graph::None>(found->value)) return nullptr;
  return found;
}

absl::StatusOr<std::optional<View>> NodeContext::OptionalTensor(size_t position,
                                                                absl::string_view name) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return std::nullopt;
  const auto* ref = std::get_if<graph::ValueRef>(&arg->value);
  if (ref == nullptr || !state_.values[ref->id]) return WrongArgument(name, "a tensor");
  return state_.values[ref->id];
}

absl::StatusOr<View> NodeContext::Tensor(size_t position, absl::string_view name) const {
  KILN_ASSIGN_OR_RETURN(std::optional<View> view, OptionalTensor(position, name));
  if (!view) return WrongArgument(name, "a tensor");
  return *std::move(view);
}

absl::StatusOr<std::vector<std::optional<View>>> NodeContext::TensorList(
    size_t position, absl::string_view name) const {
  const Arg* arg = Find(position, name);
  const auto* list = arg == nullptr ? nullptr : std::get_if<graph::ArgList>(&arg->value);
  if (list == nullptr) return WrongArgument(name, "a list of tensors");
  std::vector<std::optional<View>> views;
  for (const Arg& item : *list) {
    if (std::holds_alternative<graph::None>(item.value)) {
      views.emplace_back();
      continue;
    }
    const auto* ref = std::get_if<graph::ValueRef>(&item.value);
    if (ref == nullptr || !state_.values[ref->id]) return WrongArgument(name, "a list of tensors");
    views.push_back(state_.values[ref->id]);
  }
  return views;
}

absl::StatusOr<Number> NodeContext::ScalarArg(size_t position, absl::string_view name) const {
  const Arg* arg = Find(position, name);
  if (arg != nullptr) {
    if (const auto* b = std::get_if<bool>(&arg->value)) return Number(*b);
    if (const auto* i = std::get_if<int64_t>(&arg->value)) return Number(*i);
    if (const auto* f = std::get_if<double>(&arg->value)) return Number(*f);
    if (const auto* e = std::get_if<IntExpr>(&arg->value)) return Number(*e);
    // A number that the graph computes.
    if (std::holds_alternative<graph::ValueRef>(arg->value)) {
      return Decline(absl::StrCat("the argument '", name, "' is a tensor"));
    }
  }
  return WrongArgument(name, "a number");
}

absl::StatusOr<Number> NodeContext::ScalarArg(size_t position, absl::string_view name,
                                              Number otherwise) const {
  if (Find(position, name) == nullptr) return otherwise;
  return ScalarArg(position, name);
}

absl::StatusOr<Operand> NodeContext::TensorOrNumber(size_t position, absl::string_view name) const {
  const Arg* arg = Find(position, name);
  if (arg != nullptr && std::holds_alternative<graph::ValueRef>(arg->value)) {
    KILN_ASSIGN_OR_RETURN(View view, Tensor(position, name));
    return Operand(std::move(view));
  }
  KILN_ASSIGN_OR_RETURN(Number number, ScalarArg(position, name));
  return Operand(number);
}

absl::StatusOr<double> NodeContext::Float(size_t position, absl::string_view name,
                                          double otherwise) const {
  KILN_ASSIGN_OR_RETURN(const Number number, ScalarArg(position, name, otherwise));
  if (const auto* b = std::get_if<bool>(&number)) return *b ? 1.0 : 0.0;
  if (const auto* i = std::get_if<int64_t>(&number)) return static_cast<double>(*i);
  if (const auto* f = std::get_if<double>(&number)) return *f;
  return Decline(absl::StrCat("the argument '", name, "' is symbolic"));
}

absl::StatusOr<bool> NodeContext::Bool(size_t position, absl::string_view name,
                                       bool otherwise) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return otherwise;
  if (const auto* b = std::get_if<bool>(&arg->value)) return *b;
  if (const auto* i = std::get_if<int64_t>(&arg->value)) return *i != 0;
  return WrongArgument(name, "true or false");
}

absl::StatusOr<std::string> NodeContext::String(size_t position, absl::string_view name,
                                                absl::string_view otherwise) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return std::string(otherwise);
  if (const auto* s = std::get_if<std::string>(&arg->value)) return *s;
  return WrongArgument(name, "a string");
}

absl::StatusOr<IntExpr> NodeContext::ToInt(const Arg& arg, absl::string_view name) const {
  if (const auto* i = std::get_if<int64_t>(&arg.value)) return state_.module.ints->Const(*i);
  if (const auto* e = std::get_if<IntExpr>(&arg.value)) return *e;
  if (const auto* b = std::get_if<bool>(&arg.value)) return state_.module.ints->Const(*b);
  return WrongArgument(name, "an integer");
}

absl::StatusOr<IntExpr> NodeContext::Int(size_t position, absl::string_view name) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return WrongArgument(name, "an integer");
  return ToInt(*arg, name);
}

absl::StatusOr<int64_t> NodeContext::ConstInt(size_t position, absl::string_view name,
                                              int64_t otherwise) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return otherwise;
  KILN_ASSIGN_OR_RETURN(const IntExpr expr, ToInt(*arg, name));
  if (!expr.is_const()) return Decline(absl::StrCat("the argument '", name, "' is symbolic"));
  return expr.value();
}

absl::StatusOr<Ints> NodeContext::IntList(size_t position, absl::string_view name) const {
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return Ints{};
  const auto* list = std::get_if<graph::ArgList>(&arg->value);
  Ints items;
  if (list == nullptr) {
    KILN_ASSIGN_OR_RETURN(items.emplace_back(), ToInt(*arg, name));
    return items;
  }
  for (const Arg& item : *list) {
    KILN_ASSIGN_OR_RETURN(items.emplace_back(), ToInt(item, name));
  }
  return items;
}

absl::StatusOr<std::vector<int64_t>> NodeContext::ConstIntList(size_t position,
                                                               absl::string_view name) const {
  KILN_ASSIGN_OR_RETURN(const Ints items, IntList(position, name));
  std::vector<int64_t> values;
  for (const IntExpr item : items) {
    if (!item.is_const()) return Decline(absl::StrCat("the argument '", name, "' is symbolic"));
    values.push_back(item.value());
  }
  return values;
}

absl::StatusOr<std::vector<double>> NodeContext::FloatList(size_t position,
                                                           absl::string_view name) const {
  std::vector<double> values;
  const Arg* arg = Find(position, name);
  if (arg == nullptr) return values;
  const auto* list = std::get_if<graph::ArgList>(&arg->value);
  if (list == nullptr) return WrongArgument(name, "a list of numbers");
  for (const Arg& item : *list) {
    if (const auto* d = std::get_if<double>(&item.value)) {
      values.push_back(*d);
    } else if (const auto* i = std::get_if<int64_t>(&item.value)) {
      values.push_back(static_cast<double>(*i));
    } else if (std::holds_alternative<graph::None>(item.value)) {
      values.push_back(0);
    } else {
      return WrongArgument(name, "a list of numbers");
    }
  }
  return values;
}

absl::StatusOr<std::vector<int64_t>> NodeContext::SpatialList(size_t position,
                                                              absl::string_view name, size_t rank,
                                                              int64_t otherwise) const {
  KILN_ASSIGN_OR_RETURN(std::vector<int64_t> values, ConstIntList(position, name));
  if (values.empty()) values.push_back(otherwise);
  if (values.size() == 1) values.resize(rank, values[0]);
  if (values.size() != rank) {
    return BadGraph(absl::StrCat("'", name, "' has ", values.size(), " items"),
                    absl::StrCat("1 or ", rank));
  }
  for (const int64_t value : values) {
    // Far beyond any real kernel size, and small enough that products stay in range.
    if (value < 0 || value > (int64_t{1} << 30)) {
      return BadGraph(absl::StrCat("'", name, "' has the item ", value), "0 to 2^30");
    }
  }
  return values;
}

absl::StatusOr<int> NodeContext::WrapDimension(int64_t dim, size_t rank) const {
  const int64_t limit = std::max<int64_t>(static_cast<int64_t>(rank), 1);
  if (dim < -limit || dim >= limit) {
    return BadGraph(absl::StrCat("dimension ", dim), absl::StrCat(-limit, " to ", limit - 1));
  }
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

absl::StatusOr<int> NodeContext::Dimension(size_t position, absl::string_view name, size_t rank,
                                           int64_t otherwise) const {
  KILN_ASSIGN_OR_RETURN(const int64_t dim, ConstInt(position, name, otherwise));
  return WrapDimension(dim, rank);
}

absl::StatusOr<std::vector<int>> NodeContext::Dimensions(size_t position, absl::string_view name,
                                                         size_t rank) const {
  KILN_ASSIGN_OR_RETURN(const std::vector<int64_t> items, ConstIntList(position, name));
  std::vector<int> dims;
  for (const int64_t item : items) {
    KILN_ASSIGN_OR_RETURN(const int dim, WrapDimension(item, rank));
    if (rank > 0) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end());
  if (std::adjacent_find(dims.begin(), dims.end()) != dims.end()) {
    return BadGraph(absl::StrCat("'", name, "' names a dimension twice"), "each at most once");
  }
  if (items.empty()) {
    dims.resize(rank);
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

bool NodeContext::ResultUsed(size_t i) const {
  const int id = node_.results[i].id;
  return state_.used[id] && !std::holds_alternative<IntExpr>(state_.graph.values[id]);
}

bool NodeContext::HasResult(size_t i) const {
  return std::holds_alternative<graph::TensorType>(state_.graph.values[node_.results[i].id]);
}

const graph::TensorType& NodeContext::Result(size_t i) const {
  return TypeOf(node_.results[i]);
}

const graph::TensorType& NodeContext::TypeOf(graph::ValueRef value) const {
  return std::get<graph::TensorType>(state_.graph.values[value.id]);
}

absl::Status NodeContext::CheckResults(size_t count) const {
  if (node_.results.size() != count) {
    return BadGraph(absl::StrCat(node_.results.size(), " results"), absl::StrCat(count));
  }
  for (const graph::ValueRef result : node_.results) {
    if (!std::holds_alternative<graph::TensorType>(state_.graph.values[result.id])) {
      return BadGraph("a result is a size or left out", "tensors");
    }
  }
  return absl::OkStatus();
}

absl::Status NodeContext::CheckSizes(const Ints& actual, const Ints& expected,
                                     absl::string_view what) const {
  bool ok = actual.size() == expected.size();
  for (size_t i = 0; ok && i < actual.size(); ++i) {
    ok = actual[i] == expected[i] || !actual[i].is_const() || !expected[i].is_const();
  }
  if (ok) return absl::OkStatus();
  const auto text = [](const Ints& sizes) {
    std::string out = "[";
    for (const IntExpr size : sizes) {
      absl::StrAppend(&out, out.size() > 1 ? ", " : "",
                      size.is_const() ? absl::StrCat(size.value()) : "?");
    }
    return out + "]";
  };
  return BadGraph(absl::StrCat(what, " has sizes ", text(actual)), text(expected));
}

absl::Status NodeContext::CheckBroadcast(const Ints& from, const Ints& to) const {
  if (from.size() > to.size()) return CheckSizes(from, to, "an operand");
  Ints aligned(to.end() - from.size(), to.end());
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i].is_const(1)) aligned[i] = from[i];
  }
  return CheckSizes(from, aligned, "an operand");
}

absl::Status NodeContext::SetView(size_t i, View view) {
  KILN_RETURN_IF_ERROR(CheckSizes(view.sizes, Result(i).sizes, "the view"));
  if (view.dtype != Result(i).dtype) {
    return BadGraph(absl::StrCat("the result's type is ", DTypeName(Result(i).dtype)),
                    DTypeName(view.dtype));
  }
  // From here on the recorded sizes count, in the form that the graph gives them.
  View named = Remap(ints(), view, Result(i).sizes, [](const Ints& vars) { return vars; });
  SetResult(i, std::move(named));
  return absl::OkStatus();
}

View NodeContext::NewResult(size_t i) {
  return NewTempLike(i, Result(i).dtype);
}

View NodeContext::NewTempLike(size_t i, DType dtype) {
  const graph::TensorType& type = Result(i);
  ir::Buffer buffer;
  buffer.name = state_.UniqueName(node_.name);
  buffer.dtype = dtype;
  buffer.sizes = type.sizes;
  buffer.strides = IsDense(ints(), type.sizes, type.strides)
                       ? type.strides
                       : module().ContiguousStrides(type.sizes);
  return WholeBuffer(module(), module().AddBuffer(std::move(buffer)));
}

View NodeContext::NewTemp(const Ints& sizes, DType dtype) {
  ir::Buffer buffer;
  buffer.name = state_.UniqueName(node_.name);
  buffer.dtype = dtype;
  buffer.sizes = sizes;
  buffer.strides = module().ContiguousStrides(sizes);
  return WholeBuffer(module(), module().AddBuffer(std::move(buffer)));
}

KernelBuilder NodeContext::NewKernel() {
  return KernelBuilder(module(), state_.UniqueName(absl::StrCat("k_", node_.name)), node_.name);
}

std::vector<int> NodeContext::LoopOrder(const View& view) const {
  return MemoryOrder(*state_.module.ints, view.sizes, state_.module.buffers[view.buffer].strides);
}

void NodeContext::Pointwise(const View& out, const Body& body) {
  KernelBuilder b = NewKernel();
  const Ints at = b.Outer(out.sizes, LoopOrder(out));
  b.StartPhase();
  b.Store(out, at, body(b, at));
  b.Finish();
}

void NodeContext::PointwiseResult(size_t i, const Body& body) {
  const View out = NewResult(i);
  Pointwise(out, body);
  SetResult(i, out);
}

}  // namespace kiln::lowering
