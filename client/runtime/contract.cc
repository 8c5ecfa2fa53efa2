#include "client/runtime/contract.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/strided_copy.h"
#include "client/runtime/symbol_map.h"
#include "proto/base/random_inputs.h"
#include "proto/base/status_macros.h"
#include "proto/base/view_ops.h"

namespace kiln::runtime {
namespace {

absl::Status Differs(absl::string_view where, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the artifact is not of this graph: ", where, " ", what));
}

absl::Status BadGraph(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the graph ", what));
}

absl::string_view NameOf(kiln_value_kind kind) {
  return kind == KILN_TENSOR ? "a tensor" : kind == KILN_INT ? "a number" : "nothing";
}

bool IsSymbolic(const v1::TensorType& type) {
  const auto symbolic = [](const v1::SymInt& size) { return size.has_expr(); };
  return std::any_of(type.sizes().begin(), type.sizes().end(), symbolic) ||
         std::any_of(type.strides().begin(), type.strides().end(), symbolic);
}

// Whether two elements may share a place. REQUIRES: no negative size or stride.
bool MayOverlap(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] > 1) dims.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // of the dimensions before
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    int64_t more = 0;
    if (__builtin_mul_overflow(size - 1, stride, &more) ||
        __builtin_add_overflow(reach, more, &reach)) {
      return true;
    }
  }
  return false;
}

}  // namespace

// ---- What needs no sizes

class Contract::Maker {
 public:
  Maker(const v1::Graph& graph, const v1::Program& program, Contract& contract)
      : graph_(graph),
        program_(program),
        contract_(contract),
        symbols_(graph.symbols(), program.symbols()) {}

  absl::Status Make() {
    KILN_RETURN_IF_ERROR(NumberValues());
    KILN_RETURN_IF_ERROR(CompareInputs());
    KILN_RETURN_IF_ERROR(CompareConstants());
    if (program_.outputs_size() != graph_.outputs_size()) {
      return Differs("it", absl::StrCat("has ", program_.outputs_size(), " outputs; expected ",
                                        graph_.outputs_size()));
    }
    for (int i = 0; i < graph_.outputs_size(); ++i) KILN_RETURN_IF_ERROR(AddOutput(i));
    KILN_RETURN_IF_ERROR(CompareMemory());
    return AddLibraryNodes();
  }

 private:
  // Types, and which values are one memory in eager mode.
  absl::Status NumberValues() {
    const auto add = [&](const v1::ValueType& type) {
      types_.push_back(&type);
      roots_.push_back(static_cast<uint32_t>(roots_.size()));
      at_start_.push_back(true);
    };
    for (const v1::Input& input : graph_.inputs()) add(input.type());
    for (const v1::Constant& constant : graph_.constants()) {
      constant_types_.emplace_back();
      *constant_types_.back().mutable_tensor() = constant.type();
    }
    for (const v1::ValueType& type : constant_types_) add(type);
    for (const v1::Node& node : graph_.nodes()) {
      const ViewKind view = ViewKindOf(node.op());
      const bool is_view =
          view != ViewKind::kNone && node.args_size() > 0 && node.args(0).has_value();
      first_results_.push_back(static_cast<uint32_t>(types_.size()));
      for (const v1::ValueType& result : node.results()) {
        add(result);
        if (!is_view || node.args(0).value() >= first_results_.back()) continue;
        roots_.back() = roots_[node.args(0).value()];
        at_start_.back() = view == ViewKind::kWhole && at_start_[node.args(0).value()];
      }
    }
    contract_.written_.assign(static_cast<size_t>(graph_.inputs_size()), false);
    for (const v1::Mutation& mutation : graph_.mutations()) {
      if (mutation.input() >= contract_.written_.size()) return BadGraph("writes to no input");
      contract_.written_[mutation.input()] = true;
    }
    return absl::OkStatus();
  }

  absl::Status CompareInputs() {
    if (program_.inputs_size() != graph_.inputs_size()) {
      return Differs("it", absl::StrCat("has ", program_.inputs_size(), " inputs; expected ",
                                        graph_.inputs_size()));
    }
    for (int i = 0; i < graph_.inputs_size(); ++i) {
      const v1::Input& asked = graph_.inputs(i);
      const v1::Input& got = program_.inputs(i);
      const bool same_kind = asked.type().kind_case() == got.type().kind_case();
      if (!same_kind || asked.role() != got.role() ||
          !symbols_.Match(asked.type().tensor(), got.type().tensor()) ||
          !symbols_.Match(asked.type().sym_int(), got.type().sym_int())) {
        return Differs(absl::StrCat("input ", i, " ('", asked.name(), "')"),
                       "is of another type, or for fewer sizes than the graph's");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CompareConstants() {
    bool same = program_.constants_size() == graph_.constants_size();
    for (int i = 0; same && i < graph_.constants_size(); ++i) {
      const v1::Constant& asked = graph_.constants(i);
      const v1::Constant& got = program_.constants(i);
      same = asked.data() == got.data() && symbols_.Match(asked.type(), got.type());
    }
    return same ? absl::OkStatus() : Differs("it", "has other constants");
  }

  absl::Status AddOutput(int i) {
    const std::string where = absl::StrCat("output ", i);
    Output out;
    KILN_RETURN_IF_ERROR(Describe(graph_.outputs(i), out));
    const v1::ProgramOutput& got = program_.outputs(i);
    const kiln_value_kind kind = got.has_tensor()    ? KILN_TENSOR
                                 : got.has_sym_int() ? KILN_INT
                                                     : KILN_NONE;
    if (kind != out.kind) {
      return Differs(where, absl::StrCat("is ", NameOf(kind), "; expected ", NameOf(out.kind)));
    }
    if (kind == KILN_TENSOR && (got.tensor().dtype() != out.type.dtype() ||
                                got.tensor().sizes_size() != out.type.sizes_size())) {
      return Differs(where, "has another dtype or another number of dimensions");
    }
    contract_.outputs_.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status Describe(const v1::Output& asked, Output& out) {
    if (asked.has_sym_int()) {
      out.kind = KILN_INT;
      out.number = asked.sym_int();
      return symbols_.Translate(out.number);
    }
    if (asked.kind_case() != v1::Output::kValue) return absl::OkStatus();
    if (asked.value() >= types_.size()) return BadGraph("has an output that is no value of it");
    const v1::ValueType& type = *types_[asked.value()];
    if (type.has_sym_int()) {
      out.kind = KILN_INT;
      out.number = type.sym_int();
      return symbols_.Translate(out.number);
    }
    if (!type.has_tensor() || type.tensor().sizes_size() != type.tensor().strides_size()) {
      return BadGraph("has an output without a type");
    }
    out.kind = KILN_TENSOR;
    out.type = type.tensor();
    out.root = roots_[asked.value()];
    out.at_start = at_start_[asked.value()];
    out.is_value = out.root == asked.value();
    return symbols_.Translate(out.type);
  }

  // An output lies in an input's memory where it does so in eager mode, and two outputs lie in one
  // buffer where they do.
  absl::Status CompareMemory() {
    absl::flat_hash_map<uint32_t, uint32_t> root_of_buffer;
    const auto inputs = static_cast<uint32_t>(graph_.inputs_size());
    for (int i = 0; i < program_.outputs_size(); ++i) {
      if (!program_.outputs(i).has_tensor()) continue;
      const std::string where = absl::StrCat("output ", i);
      const Output& out = contract_.outputs_[static_cast<size_t>(i)];
      const uint32_t number = program_.outputs(i).tensor().buffer();
      const v1::Buffer& buffer = program_.buffers(static_cast<int>(number));
      const bool is_input = out.root < inputs && !contract_.written_[out.root];
      const bool in_input = buffer.kind() == v1::Buffer::KIND_INPUT;
      if (in_input && !(is_input && buffer.index() == out.root)) {
        return Differs(where, absl::StrCat("lies in input ", buffer.index()));
      }
      if (!in_input && is_input && out.is_value) {
        return Differs(where, absl::StrCat("is not input ", out.root));
      }
      if (buffer.kind() == v1::Buffer::KIND_CONSTANT && buffer.index() + inputs != out.root) {
        return Differs(where, "is a constant");
      }
      if (root_of_buffer.try_emplace(number, out.root).first->second != out.root) {
        return Differs(where, "lies in another output's memory");
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddLibraryNodes() {
    absl::flat_hash_set<absl::string_view> ops;
    for (const v1::Step& step : program_.steps()) {
      if (step.has_library()) ops.insert(step.library().op());
    }
    for (int n = 0; n < graph_.nodes_size(); ++n) {
      const v1::Node& node = graph_.nodes(n);
      if (!ops.contains(node.op())) continue;
      v1::Node& kept = contract_.nodes_.emplace_back(node);
      contract_.first_results_.push_back(first_results_[static_cast<size_t>(n)]);
      for (v1::Argument& arg : *kept.mutable_args()) KILN_RETURN_IF_ERROR(KeepArg(arg));
      for (v1::NamedArgument& arg : *kept.mutable_kwargs()) {
        KILN_RETURN_IF_ERROR(KeepArg(*arg.mutable_value()));
      }
      for (int r = 0; r < node.results_size(); ++r) {
        KILN_RETURN_IF_ERROR(KeepType(contract_.first_results_.back() + static_cast<uint32_t>(r)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status KeepArg(v1::Argument& arg) {
    KILN_RETURN_IF_ERROR(symbols_.Translate(arg));
    return KeepTypes(arg);
  }

  // Translate has bounded the depth.
  absl::Status KeepTypes(const v1::Argument& arg) {
    if (arg.has_value()) return KeepType(arg.value());
    for (const v1::Argument& item : arg.list().items()) KILN_RETURN_IF_ERROR(KeepTypes(item));
    return absl::OkStatus();
  }

  absl::Status KeepType(uint32_t value) {
    if (value >= types_.size()) return BadGraph("has an argument that is no value of it");
    const auto [it, added] = contract_.types_.try_emplace(value, *types_[value]);
    return added ? symbols_.Translate(it->second) : absl::OkStatus();
  }

  const v1::Graph& graph_;
  const v1::Program& program_;
  Contract& contract_;
  SymbolMap symbols_;
  std::vector<const v1::ValueType*> types_;  // by value, and the next two
  std::vector<uint32_t> roots_;
  std::vector<bool> at_start_;
  std::vector<uint32_t> first_results_;  // by node
  std::deque<v1::ValueType> constant_types_;
};

absl::StatusOr<std::unique_ptr<const Contract>> Contract::Compare(const v1::Graph& graph,
                                                                  const v1::Program& program) {
  std::unique_ptr<Contract> contract(new Contract(program));
  KILN_RETURN_IF_ERROR(Maker(graph, program, *contract).Make());
  return contract;
}

// ---- What needs them

absl::Status Contract::CheckPlan(const Plan& plan) const {
  for (size_t i = 0; i < outputs_.size(); ++i) KILN_RETURN_IF_ERROR(CheckOutput(plan, i));
  return plan.libraries.empty() ? absl::OkStatus() : CheckLibrarySteps(plan);
}

absl::Status Contract::CheckOutput(const Plan& plan, size_t i) const {
  const Output& asked = outputs_[i];
  const PlanOutput& got = plan.outputs[i];
  const std::string where = absl::StrCat("output ", i);
  if (asked.kind == KILN_INT) {
    KILN_ASSIGN_OR_RETURN(const int64_t value, EvaluateSymInt(asked.number, plan.symbols));
    if (got.value == value) return absl::OkStatus();
    return Differs(where, absl::StrCat("is ", got.value, "; expected ", value));
  }
  if (asked.kind != KILN_TENSOR) return absl::OkStatus();
  std::vector<int64_t> sizes, strides;
  for (const v1::SymInt& size : asked.type.sizes()) {
    KILN_ASSIGN_OR_RETURN(const int64_t value, EvaluateSymInt(size, plan.symbols));
    sizes.push_back(std::max<int64_t>(value, 0));
  }
  for (const v1::SymInt& stride : asked.type.strides()) {
    KILN_ASSIGN_OR_RETURN(strides.emplace_back(), EvaluateSymInt(stride, plan.symbols));
    if (strides.back() < 0) return BadGraph("has an output with a negative stride");
  }
  const PlanTensor& type = got.view.type;
  if (type.sizes != sizes) return Differs(where, "has other sizes");
  if (type.strides != strides) {
    // Where elements share places the output is a plain copy; with symbols that is decided for all
    // of their values at once.
    const bool may_be_copy = IsSymbolic(asked.type) || MayOverlap(sizes, strides);
    if (!may_be_copy || !IsContiguous(sizes, type.strides)) {
      return Differs(where, "has other strides");
    }
  }
  const BufferKind kind = plan.buffers[static_cast<size_t>(got.view.buffer)].kind;
  if (kind == BufferKind::kInput && asked.at_start && got.view.offset != 0) {
    return Differs(where, "begins elsewhere in its input");
  }
  return absl::OkStatus();
}

}  // namespace kiln::runtime
