#include "proto/base/key_description.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "kiln/v1/key_description.pb.h"
#include "proto/base/digest.h"
#include "proto/base/dtype.h"
#include "proto/base/key.h"

namespace kiln {
namespace {

using google::protobuf::RepeatedPtrField;
using Texts = RepeatedPtrField<std::string>;

constexpr int kMaxDepth = 64;  // as key.cc's
constexpr size_t kMaxTextBytes = 280;
constexpr double kComponentWeight = 20;

std::string Shorten(std::string text) {
  if (text.size() <= kMaxTextBytes) return text;
  const std::string rest = text.substr(kMaxTextBytes);
  text.resize(kMaxTextBytes);
  return absl::StrCat(text, "... #", Sha256(rest).ShortHex());
}

std::string SortedText(const Texts& texts) {
  std::vector<std::string> sorted(texts.begin(), texts.end());
  std::sort(sorted.begin(), sorted.end());
  return absl::StrJoin(sorted, " ");
}

// Of an enumerator; one that this build does not know has an empty name.
std::string NameOrNumber(absl::string_view name, int number) {
  return name.empty() ? absl::StrCat(number) : std::string(name);
}

// "f32" for DTYPE_FLOAT32; the number of one that is unknown.
std::string DTypeText(int number) {
  const absl::StatusOr<DType> dtype = DTypeFromProto(number);
  return dtype.ok() ? std::string(DTypeName(*dtype)) : absl::StrCat("dtype ", number);
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  return absl::StrFormat("%.17g", value);
}

class GraphDescriber {
 public:
  explicit GraphDescriber(const v1::Graph& graph) : graph_(graph) {}

  void Describe(v1::KeyDescription& out) {
    for (const v1::Input& input : graph_.inputs()) {
      out.add_inputs(Shorten(absl::StrCat(RoleText(input.role()), " ", Text(input.type()))));
    }
    for (const v1::Constant& constant : graph_.constants()) {
      out.add_constants(
          Shorten(absl::StrCat(Text(constant.type()), " = #", Sha256(constant.data()).ShortHex())));
    }
    for (const v1::Node& node : graph_.nodes()) out.add_nodes(Shorten(Text(node)));
    for (const v1::Output& output : graph_.outputs()) out.add_outputs(Shorten(Text(output)));
    for (const v1::Mutation& mutation : graph_.mutations()) {
      out.add_mutations(absl::StrCat("input ", mutation.input(), " becomes %", mutation.value()));
    }
  }

 private:
  static std::string RoleText(int role) {
    switch (role) {
      case v1::Input::ROLE_USER:
        return "user";
      case v1::Input::ROLE_PARAMETER:
        return "parameter";
      case v1::Input::ROLE_SYMBOL:
        return "symbol";
      default:
        return absl::StrCat("role ", role);
    }
  }

  std::string Text(const v1::Node& node) {
    std::vector<std::string> arguments;
    for (const v1::Argument& argument : node.args()) arguments.push_back(Text(argument, 0));
    std::vector<std::pair<std::string, const v1::Argument*>> named;
    for (const v1::NamedArgument& argument : node.kwargs()) {
      named.emplace_back(argument.name(), &argument.value());
    }
    std::stable_sort(named.begin(), named.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [name, value] : named) {
      arguments.push_back(absl::StrCat(name, "=", Text(*value, 0)));
    }
    std::vector<std::string> results;
    for (const v1::ValueType& result : node.results()) results.push_back(Text(result));
    return absl::StrCat(node.op(), "(", absl::StrJoin(arguments, ", "), ") -> ",
                        absl::StrJoin(results, ", "));
  }

  std::string Text(const v1::Argument& argument, int depth) {
    if (depth > kMaxDepth) return "...";
    switch (argument.kind_case()) {
      case v1::Argument::kValue:
        return absl::StrCat("%", argument.value());
      case v1::Argument::kInt:
        return absl::StrCat(argument.int_());
      case v1::Argument::kFloat:
        return absl::StrCat("float ", FloatText(argument.float_()));
      case v1::Argument::kComplex:
        return absl::StrCat("complex ", FloatText(argument.complex().real()), " ",
                            FloatText(argument.complex().imag()));
      case v1::Argument::kBool:
        return argument.bool_() ? "true" : "false";
      case v1::Argument::kString:
        return absl::StrCat("'", argument.string(), "'");
      case v1::Argument::kDtype:
        return DTypeText(argument.dtype());
      case v1::Argument::kSymInt:
        return absl::StrCat("size ", Text(argument.sym_int()));
      case v1::Argument::kList: {
        std::vector<std::string> items;
        for (const v1::Argument& item : argument.list().items()) {
          items.push_back(Text(item, depth + 1));
        }
        return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
      }
      case v1::Argument::kNone:
        return "none";
      case v1::Argument::KIND_NOT_SET:
        return "nothing";
    }
    return "nothing";
  }

  std::string Text(const v1::ValueType& type) {
    if (type.has_tensor()) return Text(type.tensor());
    if (type.has_sym_int()) return absl::StrCat("size ", Text(type.sym_int()));
    return "nothing";
  }

  std::string Text(const v1::TensorType& type) {
    std::string text = absl::StrCat(DTypeText(type.dtype()), "[", List(type.sizes()), "] strides [",
                                    List(type.strides()), "]");
    const std::string offset = Text(type.storage_offset());
    if (offset != "0") absl::StrAppend(&text, " offset ", offset);
    return text;
  }

  std::string List(const RepeatedPtrField<v1::SymInt>& sizes) {
    std::vector<std::string> texts;
    for (const v1::SymInt& size : sizes) texts.push_back(Text(size));
    return absl::StrJoin(texts, ",");
  }

  std::string Text(const v1::Output& output) {
    switch (output.kind_case()) {
      case v1::Output::kValue:
        return absl::StrCat("%", output.value());
      case v1::Output::kSymInt:
        return absl::StrCat("size ", Text(output.sym_int()));
      case v1::Output::kNone:
        return "none";
      case v1::Output::KIND_NOT_SET:
        return "nothing";
    }
    return "nothing";
  }

  std::string Text(const v1::SymInt& size) {
    return size.has_expr() ? Text(size.expr(), 0) : absl::StrCat(size.value());
  }

  std::string Text(const v1::SymExpr& expr, int depth) {
    if (depth > kMaxDepth) return absl::StrCat("kind ", expr.kind(), " ...");
    std::string text;
    if (expr.kind() == v1::SymExpr::KIND_CONSTANT) text = absl::StrCat(expr.constant(), "c");
    if (expr.kind() == v1::SymExpr::KIND_SYMBOL) text = SymbolText(expr.symbol());
    if (text.empty()) text = ExprKindText(expr.kind());
    if (expr.operands().empty()) return text;
    std::vector<std::string> operands;
    for (const v1::SymExpr& operand : expr.operands()) operands.push_back(Text(operand, depth + 1));
    return absl::StrCat(text, "(", absl::StrJoin(operands, ", "), ")");
  }

  static std::string ExprKindText(int kind) {
    switch (kind) {
      case v1::SymExpr::KIND_ADD:
        return "add";
      case v1::SymExpr::KIND_MUL:
        return "mul";
      case v1::SymExpr::KIND_FLOOR_DIV:
        return "floordiv";
      case v1::SymExpr::KIND_MOD:
        return "mod";
      case v1::SymExpr::KIND_MIN:
        return "min";
      case v1::SymExpr::KIND_MAX:
        return "max";
      default:
        return absl::StrCat("kind ", kind);
    }
  }

  // Symbols are numbered by first use, where their ranges stand.
  std::string SymbolText(uint32_t index) {
    auto [it, first_use] = numbers_.try_emplace(index, numbers_.size());
    std::string text = absl::StrCat("s", it->second);
    if (first_use && index < static_cast<uint32_t>(graph_.symbols_size())) {
      const v1::Symbol& symbol = graph_.symbols(static_cast<int>(index));
      absl::StrAppend(&text, "{", symbol.min(), "..", symbol.max(), " like ", symbol.hint(), "}");
    }
    return text;
  }

  const v1::Graph& graph_;
  absl::flat_hash_map<uint32_t, size_t> numbers_;
};

void AddComponent(v1::KeyDescription& out, absl::string_view name, std::string value) {
  v1::KeyComponent& component = *out.add_components();
  component.set_name(std::string(name));
  component.set_value(Shorten(std::move(value)));
}

// "KIND_SHARED 233472 bytes 0 bytes/s;" each, sorted.
std::string MemoryText(const v1::Device& device) {
  Texts texts;
  for (const v1::MemorySpace& space : device.memory_spaces()) {
    texts.Add(absl::StrCat(NameOrNumber(v1::MemorySpace::Kind_Name(space.kind()), space.kind()),
                           " ", space.bytes(), " bytes ", space.bytes_per_second(), " bytes/s;"));
  }
  return SortedText(texts);
}

std::string FormatsText(const v1::Device& device) {
  Texts texts;
  for (const v1::BinaryFormat& format : device.binary_formats()) {
    texts.Add(absl::StrCat(NameOrNumber(v1::BinaryKind_Name(format.kind()), format.kind()), " ",
                           format.version(), ";"));
  }
  return SortedText(texts);
}

// What a device does not say is in neither its key nor its description.
void DescribeExtensions(const v1::Device& device, v1::KeyDescription& out) {
  const std::pair<absl::string_view, int64_t> numbers[] = {
      {"device.compute_units", device.compute_units()},
      {"device.registers", device.registers()},
      {"device.vector_bits", device.vector_bits()},
      {"device.clock_mhz", device.clock_mhz()},
  };
  for (const auto& [name, value] : numbers) {
    if (value != 0) AddComponent(out, name, absl::StrCat(value));
  }
  if (!device.memory_spaces().empty()) {
    AddComponent(out, "device.memory_spaces", MemoryText(device));
  }
  if (!device.binary_formats().empty()) {
    AddComponent(out, "device.binary_formats", FormatsText(device));
  }
}

struct ComponentDifference {
  std::string name;
  std::string a, b;  // empty: only the other has it
};

// By name, since a server of another version may have stored one of the two: it has other
// components. Those of `a` come first, in its order.
std::vector<ComponentDifference> DifferentComponents(const v1::KeyDescription& a,
                                                     const v1::KeyDescription& b) {
  auto find = [](const v1::KeyDescription& in, absl::string_view name) -> const v1::KeyComponent* {
    for (const v1::KeyComponent& component : in.components()) {
      if (component.name() == name) return &component;
    }
    return nullptr;
  };
  std::vector<ComponentDifference> out;
  for (const v1::KeyComponent& component : a.components()) {
    const v1::KeyComponent* other = find(b, component.name());
    const std::string value = other == nullptr ? "" : other->value();
    if (value != component.value()) out.push_back({component.name(), component.value(), value});
  }
  for (const v1::KeyComponent& component : b.components()) {
    if (find(a, component.name()) == nullptr) {
      out.push_back({component.name(), "", component.value()});
    }
  }
  return out;
}

// What a node is, without the numbers of its operands, which an insertion before it moves.
absl::string_view Operator(absl::string_view node) {
  return node.substr(0, node.find('('));
}

class Differences {
 public:
  explicit Differences(size_t limit) : limit_(limit) {}

  bool full() const { return found_.size() >= limit_; }
  void Add(std::string component, std::string asked, std::string nearest) {
    if (!full()) found_.push_back({std::move(component), std::move(asked), std::move(nearest)});
  }
  // By place.
  void AddLists(absl::string_view what, const Texts& asked, const Texts& nearest) {
    for (int i = 0; i < std::max(asked.size(), nearest.size()) && !full(); ++i) {
      const std::string a = i < asked.size() ? asked[i] : "";
      const std::string b = i < nearest.size() ? nearest[i] : "";
      if (a != b) Add(absl::StrCat(what, " ", i), a, b);
    }
  }
  void AddNodes(const Texts& asked, const Texts& nearest);
  std::vector<KeyDifferenceText> Take() { return std::move(found_); }

 private:
  const size_t limit_;
  std::vector<KeyDifferenceText> found_;
};

// Both sides are walked together; where operators differ, the side on which the other's operator
// comes again sooner has nodes of its own.
void Differences::AddNodes(const Texts& asked, const Texts& nearest) {
  if (asked.size() == nearest.size()) return AddLists("node", asked, nearest);
  constexpr int kLookAhead = 200;
  auto distance = [](const Texts& nodes, int from, absl::string_view op) {
    for (int i = from; i < nodes.size() && i < from + kLookAhead; ++i) {
      if (Operator(nodes[i]) == op) return i - from;
    }
    return kLookAhead;
  };
  int i = 0, k = 0;
  while ((i < asked.size() || k < nearest.size()) && !full()) {
    if (i < asked.size() && k < nearest.size()) {
      const absl::string_view a = Operator(asked[i]), b = Operator(nearest[k]);
      if (a == b) {
        ++i, ++k;
        continue;
      }
      if (distance(asked, i, b) <= distance(nearest, k, a)) {
        Add(absl::StrCat("node ", i), asked[i], "");
        ++i;
      } else {
        Add(absl::StrCat("node ", k), "", nearest[k]);
        ++k;
      }
    } else if (i < asked.size()) {
      Add(absl::StrCat("node ", i), asked[i], "");
      ++i;
    } else {
      Add(absl::StrCat("node ", k), "", nearest[k]);
      ++k;
    }
  }
}

// Texts that only one of the two has, counting repeated ones.
double Unshared(const Texts& a, const Texts& b) {
  absl::flat_hash_map<absl::string_view, int> counts;
  for (const std::string& text : a) ++counts[text];
  for (const std::string& text : b) --counts[text];
  double sum = 0;
  for (const auto& [text, count] : counts) sum += std::abs(count);
  return sum;
}

}  // namespace

v1::KeyDescription DescribeKey(const v1::Graph& graph, const v1::Device& client_device,
                               const v1::CompileOptions& client_options,
                               absl::string_view compiler_build) {
  const v1::Device device = KeyedDevice(client_device);
  const v1::CompileOptions options = KeyedOptions(client_options);
  v1::KeyDescription out;
  out.set_graph_name(graph.name());
  AddComponent(out, "key encoding", absl::StrCat(kKeyEncodingVersion));
  AddComponent(out, "compiler build", std::string(compiler_build));
  AddComponent(out, "device.target",
               NameOrNumber(v1::Target_Name(device.target()), device.target()));
  AddComponent(out, "device.arch", device.arch());
  AddComponent(out, "device.features", SortedText(device.features()));
  AddComponent(out, "device.l1_bytes", absl::StrCat(device.l1_bytes()));
  AddComponent(out, "device.l2_bytes", absl::StrCat(device.l2_bytes()));
  AddComponent(out, "device.l3_bytes", absl::StrCat(device.l3_bytes()));
  AddComponent(out, "device.libraries", SortedText(device.libraries()));
  DescribeExtensions(device, out);
  AddComponent(out, "options.optimization_level", absl::StrCat(options.optimization_level()));
  AddComponent(out, "options.disable_fusion", options.disable_fusion() ? "true" : "false");
  AddComponent(out, "options.fast_math", options.fast_math() ? "true" : "false");
  AddComponent(out, "options.disabled_passes", SortedText(options.disabled_passes()));
  AddComponent(out, "options.debug", options.debug() ? "true" : "false");
  AddComponent(out, "options.prepare_memory", absl::StrCat(options.prepare_memory()));
  AddComponent(out, "options.autotune", options.autotune() ? "true" : "false");
  AddComponent(out, "graph.format_version", absl::StrCat(graph.format_version()));
  AddComponent(out, "graph.deterministic", graph.deterministic() ? "true" : "false");
  GraphDescriber(graph).Describe(out);
  return out;
}

std::vector<KeyDifferenceText> CompareKeys(const v1::KeyDescription& asked,
                                           const v1::KeyDescription& nearest, size_t limit) {
  Differences differences(limit);
  for (ComponentDifference& difference : DifferentComponents(asked, nearest)) {
    differences.Add(std::move(difference.name), std::move(difference.a), std::move(difference.b));
  }
  differences.AddLists("input", asked.inputs(), nearest.inputs());
  differences.AddLists("constant", asked.constants(), nearest.constants());
  differences.AddNodes(asked.nodes(), nearest.nodes());
  differences.AddLists("output", asked.outputs(), nearest.outputs());
  differences.AddLists("mutation", asked.mutations(), nearest.mutations());
  return differences.Take();
}

double KeyDistance(const v1::KeyDescription& a, const v1::KeyDescription& b) {
  double distance = Unshared(a.inputs(), b.inputs()) + Unshared(a.constants(), b.constants()) +
                    Unshared(a.nodes(), b.nodes()) + Unshared(a.outputs(), b.outputs()) +
                    Unshared(a.mutations(), b.mutations());
  return distance + kComponentWeight * static_cast<double>(DifferentComponents(a, b).size());
}

}  // namespace kiln
