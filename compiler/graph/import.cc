#include "compiler/graph/import.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/import_types.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::graph {
namespace {

constexpr size_t kMaxStringLength = 1000;
constexpr size_t kMaxConstantBytes = 64 << 10;
constexpr uint32_t kFormatVersion = 1;

const Place kGraphPlace{"graph", ""};

// Operators' names reach messages, metrics and library steps as they are.
bool IsOperatorName(absl::string_view name) {
  if (name.empty() || name.size() > kMaxStringLength) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != ':') {
      return false;
    }
  }
  return true;
}

}  // namespace

absl::Status CheckCounts(const v1::Graph& proto) {
  if (proto.format_version() != kFormatVersion) {
    return BadGraph(kGraphPlace, absl::StrCat("format version ", proto.format_version()),
                    absl::StrCat("version ", kFormatVersion));
  }
  const std::pair<absl::string_view, int> counts[] = {
      {"nodes", proto.nodes_size()},         {"inputs", proto.inputs_size()},
      {"constants", proto.constants_size()}, {"outputs", proto.outputs_size()},
      {"mutations", proto.mutations_size()},
  };
  for (const auto& [what, count] : counts) {
    if (count > kMaxNodes) {
      return BadGraph(kGraphPlace, absl::StrCat(count, " ", what),
                      absl::StrCat("at most ", kMaxNodes));
    }
  }
  return absl::OkStatus();
}

namespace {

Arg IntArg(ir::IntExpr expr) {
  return expr.is_const() ? Arg{expr.value()} : Arg{expr};
}

class Importer {
 public:
  Importer(const v1::Graph& proto, ir::IntContext& ints) : proto_(proto), types_(ints) {}

  absl::StatusOr<Graph> Run() {
    KILN_RETURN_IF_ERROR(CheckCounts(proto_));
    KILN_RETURN_IF_ERROR(types_.ReadSymbols(proto_));
    for (const v1::Input& input : proto_.inputs()) KILN_RETURN_IF_ERROR(ReadInput(input));
    for (const v1::Constant& constant : proto_.constants()) {
      KILN_RETURN_IF_ERROR(ReadConstant(constant));
    }
    for (const v1::Node& node : proto_.nodes()) KILN_RETURN_IF_ERROR(ReadNode(node));
    for (const v1::Output& output : proto_.outputs()) KILN_RETURN_IF_ERROR(ReadOutput(output));
    for (const v1::Mutation& mutation : proto_.mutations()) {
      KILN_RETURN_IF_ERROR(ReadMutation(mutation));
    }
    return std::move(graph_);
  }

 private:
  absl::Status ReadInput(const v1::Input& proto);
  absl::Status ReadConstant(const v1::Constant& proto);
  absl::Status ReadNode(const v1::Node& proto);
  absl::Status ReadOutput(const v1::Output& proto);
  absl::Status ReadMutation(const v1::Mutation& proto);
  absl::StatusOr<Arg> ReadArg(const v1::Argument& proto, const Place& place, int depth);
  absl::StatusOr<Arg> ReadValueArg(uint32_t value, const Place& place);
  absl::Status CheckValue(uint32_t value, const Place& place) const;

  const v1::Graph& proto_;
  TypeReader types_;
  Graph graph_;
};

absl::Status Importer::CheckValue(uint32_t value, const Place& place) const {
  if (value >= graph_.values.size()) {
    return BadGraph(place, absl::StrCat("it refers to value ", value),
                    absl::StrCat("a value made before it, numbered below ", graph_.values.size()));
  }
  if (std::holds_alternative<None>(graph_.values[value])) {
    return BadGraph(place, absl::StrCat("it refers to value ", value, ", which has no type"),
                    "a result that its node does not leave out");
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadInput(const v1::Input& proto) {
  const int number = static_cast<int>(graph_.inputs.size());
  Input input{SafeName(proto.name()), InputRole::kUser};
  const Place place{absl::StrCat("input ", number, " (", input.name, ")"), ""};
  switch (proto.role()) {
    case v1::Input::ROLE_USER:
      break;
    case v1::Input::ROLE_PARAMETER:
      input.role = InputRole::kParameter;
      break;
    case v1::Input::ROLE_SYMBOL:
      input.role = InputRole::kSymbol;
      break;
    default:
      return BadGraph(place, absl::StrCat("role ", static_cast<int>(proto.role())),
                      "user, parameter or symbol");
  }
  KILN_ASSIGN_OR_RETURN(ValueType type, types_.ReadValue(proto.type(), place));
  const bool is_tensor = std::holds_alternative<TensorType>(type);
  if (is_tensor == (input.role == InputRole::kSymbol)) {
    return BadGraph(place, is_tensor ? "a symbol that is a tensor" : "a size that is no symbol",
                    "the role symbol for sizes, and only for them");
  }
  graph_.values.push_back(std::move(type));
  graph_.inputs.push_back(std::move(input));
  return absl::OkStatus();
}

absl::Status Importer::ReadConstant(const v1::Constant& proto) {
  const Place place{
      absl::StrCat("constant ", graph_.constants.size(), " (", SafeName(proto.name()), ")"), ""};
  if (proto.data().size() > kMaxConstantBytes) {
    return BadGraph(place, absl::StrCat(proto.data().size(), " bytes of data"),
                    absl::StrCat("at most ", kMaxConstantBytes, "; pass it as an input"));
  }
  KILN_ASSIGN_OR_RETURN(TensorType type, types_.ReadTensor(proto.type(), place));
  int64_t elements = 1;
  for (size_t i = type.sizes.size(); i-- > 0;) {
    if (!type.sizes[i].is_const() || !type.strides[i].is_const()) {
      return BadGraph(place, absl::StrCat("dimension ", i, " is symbolic"), "a constant size");
    }
    const int64_t size = type.sizes[i].value();
    if (size > 1 && elements > 0 && type.strides[i].value() != elements) {
      return BadGraph(place, absl::StrCat("dimension ", i, " has stride ", type.strides[i].value()),
                      absl::StrCat(elements, ": constants are contiguous"));
    }
    elements *= size;
  }
  const int64_t bytes = elements * DTypeSize(type.dtype);
  if (static_cast<int64_t>(proto.data().size()) != bytes) {
    return BadGraph(place, absl::StrCat(proto.data().size(), " bytes of data"),
                    absl::StrCat(bytes, " for its type"));
  }
  graph_.values.emplace_back(std::move(type));
  graph_.constants.push_back({SafeName(proto.name()), proto.data()});
  return absl::OkStatus();
}

absl::StatusOr<Arg> Importer::ReadValueArg(uint32_t value, const Place& place) {
  KILN_RETURN_IF_ERROR(CheckValue(value, place));
  // A size given as a value is its expression: lowering sees one form only.
  if (const auto* size = std::get_if<ir::IntExpr>(&graph_.values[value])) return IntArg(*size);
  return Arg{ValueRef{static_cast<int>(value)}};
}

absl::StatusOr<Arg> Importer::ReadArg(const v1::Argument& proto, const Place& place, int depth) {
  if (depth > kMaxNesting) {
    return BadGraph(place, "its lists are nested too deeply",
                    absl::StrCat("at most ", kMaxNesting, " levels"));
  }
  switch (proto.kind_case()) {
    case v1::Argument::kNone:
      return Arg{None{}};
    case v1::Argument::kValue:
      return ReadValueArg(proto.value(), place);
    case v1::Argument::kInt:
      return Arg{proto.int_()};
    case v1::Argument::kFloat:
      return Arg{proto.float_()};
    case v1::Argument::kComplex:
      return Arg{std::complex<double>(proto.complex().real(), proto.complex().imag())};
    case v1::Argument::kBool:
      return Arg{proto.bool_()};
    case v1::Argument::kString:
      if (proto.string().size() > kMaxStringLength) {
        return BadGraph(place, absl::StrCat("a string of ", proto.string().size(), " bytes"),
                        absl::StrCat("at most ", kMaxStringLength));
      }
      return Arg{proto.string()};
    case v1::Argument::kDtype: {
      absl::StatusOr<DType> dtype = DTypeFromProto(proto.dtype());
      if (!dtype.ok()) {
        return BadGraph(place, absl::StrCat("element type ", static_cast<int>(proto.dtype())),
                        "one of DType");
      }
      return Arg{*dtype};
    }
    case v1::Argument::kSymInt: {
      KILN_ASSIGN_OR_RETURN(const ir::IntExpr expr, types_.ReadInt(proto.sym_int(), place));
      return IntArg(expr);
    }
    case v1::Argument::kList: {
      if (proto.list().items_size() > kMaxListItems) {
        return BadGraph(place, absl::StrCat("a list of ", proto.list().items_size(), " items"),
                        absl::StrCat("at most ", kMaxListItems));
      }
      ArgList list;
      list.reserve(proto.list().items_size());
      for (const v1::Argument& item : proto.list().items()) {
        KILN_ASSIGN_OR_RETURN(list.emplace_back(), ReadArg(item, place, depth + 1));
      }
      return Arg{std::move(list)};
    }
    default:
      return BadGraph(place, "an argument without a value", "one of Argument.kind");
  }
}

absl::Status Importer::ReadNode(const v1::Node& proto) {
  const size_t number = graph_.nodes.size();
  Node node;
  node.name = proto.name().empty() ? absl::StrCat("node_", number) : SafeName(proto.name());
  if (!IsOperatorName(proto.op())) {
    return BadGraph({node.name, ""},
                    absl::StrCat("the operator's name '", SafeName(proto.op()), "'"),
                    "a qualified overload such as 'aten.add.Tensor'");
  }
  node.op = proto.op();
  const Place place{node.name, node.op};
  if (proto.args_size() > kMaxListItems || proto.kwargs_size() > kMaxListItems ||
      proto.results_size() > kMaxListItems) {
    return BadGraph(place, "too many arguments or results",
                    absl::StrCat("at most ", kMaxListItems));
  }
  node.args.reserve(proto.args_size());
  for (const v1::Argument& arg : proto.args()) {
    KILN_ASSIGN_OR_RETURN(node.args.emplace_back(), ReadArg(arg, place, 1));
  }
  absl::flat_hash_set<std::string> seen;
  for (const v1::NamedArgument& arg : proto.kwargs()) {
    if (!IsOperatorName(arg.name()) || !seen.insert(arg.name()).second) {
      return BadGraph(place, absl::StrCat("the keyword argument '", SafeName(arg.name()), "'"),
                      "a schema's argument name, once");
    }
    KILN_ASSIGN_OR_RETURN(Arg value, ReadArg(arg.value(), place, 1));
    node.kwargs.emplace_back(arg.name(), std::move(value));
  }
  for (const v1::ValueType& result : proto.results()) {
    ValueType type = None{};
    if (result.kind_case() != v1::ValueType::KIND_NOT_SET) {
      KILN_ASSIGN_OR_RETURN(type, types_.ReadValue(result, place));
    }
    node.results.push_back({static_cast<int>(graph_.values.size())});
    graph_.values.push_back(std::move(type));
  }
  graph_.nodes.push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Importer::ReadOutput(const v1::Output& proto) {
  const Place place{absl::StrCat("output ", graph_.outputs.size()), ""};
  switch (proto.kind_case()) {
    case v1::Output::kNone:
      graph_.outputs.emplace_back(None{});
      return absl::OkStatus();
    case v1::Output::kSymInt: {
      KILN_ASSIGN_OR_RETURN(const ir::IntExpr expr, types_.ReadInt(proto.sym_int(), place));
      graph_.outputs.emplace_back(expr);
      return absl::OkStatus();
    }
    case v1::Output::kValue: {
      KILN_RETURN_IF_ERROR(CheckValue(proto.value(), place));
      if (const auto* size = std::get_if<ir::IntExpr>(&graph_.values[proto.value()])) {
        graph_.outputs.emplace_back(*size);
      } else {
        graph_.outputs.emplace_back(ValueRef{static_cast<int>(proto.value())});
      }
      return absl::OkStatus();
    }
    default:
      return BadGraph(place, "an output without a value", "one of Output.kind");
  }
}

// Whether two indices may be one place, as in expanded tensors: which value a write leaves there
// would depend on an order that nothing states. Of known sizes and strides those that nest, as
// those of slices and permutations do, are taken to have a place for each index.
bool MayShareElements(const TensorType& tensor) {
  struct Dimension {
    int64_t size, stride;
  };
  std::vector<Dimension> dimensions;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const ir::IntExpr size = tensor.sizes[i], stride = tensor.strides[i];
    if (size.range().max <= 0) return false;
    if (size.range().min > 1 && stride.is_const(0)) return true;
    if (size.is_const() && stride.is_const()) dimensions.push_back({size.value(), stride.value()});
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  double reach = 0;  // of the dimensions so far; a sum of products of 64-bit numbers
  for (const Dimension& dimension : dimensions) {
    if (dimension.size <= 1) continue;
    if (static_cast<double>(dimension.stride) <= reach) return true;
    reach += static_cast<double>(dimension.size - 1) * static_cast<double>(dimension.stride);
  }
  return false;
}

absl::Status Importer::ReadMutation(const v1::Mutation& proto) {
  const Place place{absl::StrCat("mutation ", graph_.mutations.size()), ""};
  if (proto.input() >= graph_.inputs.size()) {
    return BadGraph(place, absl::StrCat("it writes input ", proto.input()),
                    absl::StrCat("a number below ", graph_.inputs.size()));
  }
  KILN_RETURN_IF_ERROR(CheckValue(proto.value(), place));
  const auto* target = std::get_if<TensorType>(&graph_.values[proto.input()]);
  const auto* source = std::get_if<TensorType>(&graph_.values[proto.value()]);
  if (target == nullptr || source == nullptr) {
    return BadGraph(place, "it names a size", "a tensor for both input and value");
  }
  if (target->dtype != source->dtype || target->sizes != source->sizes) {
    return BadGraph(place, "the value's type differs from the input's",
                    "equal element types and sizes");
  }
  if (MayShareElements(*target)) {
    return BadGraph(place, absl::StrCat("elements of input ", proto.input(), " share memory"),
                    "an input whose every element has a place of its own");
  }
  graph_.mutations.push_back({static_cast<int>(proto.input()), {static_cast<int>(proto.value())}});
  return absl::OkStatus();
}

// One final value for each mutated input: two would depend on an order that nothing states.
absl::Status CheckMutatedOnce(const Graph& graph) {
  absl::flat_hash_set<int> inputs;
  for (const Mutation& mutation : graph.mutations) {
    if (!inputs.insert(mutation.input).second) {
      return BadGraph({absl::StrCat("input ", mutation.input), ""}, "it is mutated twice",
                      "one final value an input");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Graph> Import(const v1::Graph& proto, ir::IntContext& ints) {
  KILN_ASSIGN_OR_RETURN(Graph graph, Importer(proto, ints).Run());
  KILN_RETURN_IF_ERROR(CheckMutatedOnce(graph));
  return graph;
}

}  // namespace kiln::graph
