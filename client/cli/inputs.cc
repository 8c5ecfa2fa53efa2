#include "client/cli/inputs.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/npz.h"
#include "client/graph_inputs.h"
#include "client/runtime/strided_copy.h"
#include "client/safetensors.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/dtype.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

constexpr int64_t kMostSentBytes = int64_t{60} << 20;  // a call takes 64 MiB

kiln_tensor Describe(const HostTensor& tensor) {
  kiln_tensor out{};
  out.data = const_cast<char*>(tensor.data.data());
  out.sizes = tensor.sizes.data();
  out.strides = tensor.strides.data();
  out.ndim = static_cast<int32_t>(tensor.sizes.size());
  out.dtype = DTypeToProto(tensor.dtype);
  out.device_type = KILN_CPU;
  return out;
}

kiln_tensor DescribeSize(const int64_t& value) {
  kiln_tensor out{};
  out.data = const_cast<int64_t*>(&value);
  out.dtype = KILN_INT64;
  out.device_type = KILN_CPU;
  return out;
}

// The same values with the strides that the program wants.
absl::StatusOr<HostTensor> Restride(const HostTensor& from, const v1::TensorType& type,
                                    absl::Span<const int64_t> symbols) {
  HostTensor to;
  to.dtype = from.dtype;
  to.sizes = from.sizes;
  for (const v1::SymInt& stride : type.strides()) {
    KILN_ASSIGN_OR_RETURN(int64_t value, EvaluateSymInt(stride, symbols));
    to.strides.push_back(value);
  }
  if (to.strides.size() != to.sizes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", to.sizes.size(), " dimensions; expected ", to.strides.size()));
  }
  auto reach = runtime::ReachElements(to.sizes, to.strides);
  if (!reach) return absl::InvalidArgumentError("has impossible sizes");
  to.data.resize(*reach * DTypeSize(to.dtype));
  if (*reach > 0) {
    runtime::CopyStrided(to.data.data(), to.strides, from.data.data(), from.strides, to.sizes,
                         DTypeSize(to.dtype));
  }
  return to;
}

// Symbols that stand alone as a size of a tensor take that size.
void BindSymbols(const v1::TensorType& type, absl::Span<const int64_t> sizes,
                 std::vector<int64_t>& symbols) {
  for (int d = 0; d < type.sizes_size() && d < static_cast<int>(sizes.size()); ++d) {
    const v1::SymExpr& expr = type.sizes(d).expr();
    if (expr.kind() == v1::SymExpr::KIND_SYMBOL && expr.symbol() < symbols.size()) {
      symbols[expr.symbol()] = sizes[d];
    }
  }
}

// The array under one of the input's names, else the one of the second name, else null.
const NpzArray* FindArray(absl::Span<const NpzArray> arrays, const v1::Input& input,
                          absl::string_view second) {
  const NpzArray* found = nullptr;
  for (const NpzArray& array : arrays) {
    if (array.name == input.name()) return &array;
    for (const std::string& name : input.module_names()) {
      if (array.name == name) return &array;
    }
    if (found == nullptr && array.name == second) found = &array;
  }
  return found;
}

// An input that is a size: its symbol takes the file's number, where there is one.
void BindSize(const v1::Input& input, const NpzArray& array, std::vector<int64_t>& symbols) {
  const v1::SymExpr& expr = input.type().sym_int().expr();
  if (array.tensor.dtype != DType::kI64 || array.tensor.data.size() != sizeof(int64_t) ||
      expr.kind() != v1::SymExpr::KIND_SYMBOL || expr.symbol() >= symbols.size()) {
    return;
  }
  std::memcpy(&symbols[expr.symbol()], array.tensor.data.data(), sizeof(int64_t));
}

std::string AnInputsName(const v1::Graph& graph) {
  for (const v1::Input& input : graph.inputs()) {
    if (input.module_names_size() > 0) return input.module_names(0);
  }
  return graph.inputs_size() > 0 ? graph.inputs(0).name() : "";
}

// "3 tensors of the weights are no inputs of the graph: a, b, ..."
std::string Note(absl::Span<const std::string> names, absl::string_view what,
                 absl::string_view sentence) {
  constexpr size_t kMostNamed = 5;
  std::vector<std::string> shown;
  for (const std::string& name : names.subspan(0, kMostNamed)) shown.push_back(Shown(name));
  return absl::StrCat(names.size(), " ", what, names.size() == 1 ? " " : "s ", sentence, ": ",
                      absl::StrJoin(shown, ", "), names.size() > kMostNamed ? ", ..." : "");
}

// Where `spec` and the weights come together in the inputs of one graph.
class InputsMaker {
 public:
  explicit InputsMaker(const v1::Graph& graph)
      : graph_(graph),
        symbols_(HintSymbols(graph)),
        given_(graph.inputs_size(), false),
        is_weight_(given_.size(), false) {
    out_.all.resize(given_.size());
    out_.tensors.resize(given_.size());
    out_.sizes.resize(given_.size());
  }

  absl::Status TakeNpz(const std::string& path) {
    KILN_ASSIGN_OR_RETURN(const std::string data, ReadFile(path));
    KILN_ASSIGN_OR_RETURN(const std::vector<NpzArray> arrays, ParseNpz(data));
    std::vector<const NpzArray*> used(given_.size(), nullptr);
    int position = 0;
    for (size_t i = 0; i < given_.size(); ++i) {
      const v1::Input& input = graph_.inputs(static_cast<int>(i));
      if (!input.type().has_tensor()) {
        used[i] = FindArray(arrays, input, "");
        if (used[i] != nullptr) BindSize(input, *used[i], symbols_);
        continue;
      }
      used[i] = FindArray(arrays, input, absl::StrCat("arr_", position++));
      if (used[i] == nullptr) continue;
      BindSymbols(input.type().tensor(), used[i]->tensor.sizes, symbols_);
      given_[i] = true;
    }
    std::vector<std::string> unused;
    for (const NpzArray& array : arrays) {
      if (std::find(used.begin(), used.end(), &array) == used.end()) unused.push_back(array.name);
    }
    KILN_RETURN_IF_ERROR(TakeNames(path, arrays.size(), unused, "array"));
    for (size_t i = 0; i < given_.size(); ++i) {
      const v1::Input& input = graph_.inputs(static_cast<int>(i));
      if (!given_[i]) continue;
      absl::StatusOr<HostTensor> tensor =
          Restride(used[i]->tensor, input.type().tensor(), symbols_);
      if (!tensor.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("array for input '", input.name(), "' ", tensor.status().message()));
      }
      out_.tensors[i] = *std::move(tensor);
    }
    return absl::OkStatus();
  }

  absl::Status TakeWeights(const std::vector<std::string>& paths) {
    KILN_ASSIGN_OR_RETURN(out_.weights, Weights::Load(paths));
    KILN_ASSIGN_OR_RETURN(const Weights::Binding binding,
                          out_.weights->Bind(graph_, absl::MakeSpan(out_.all)));
    for (size_t i = 0; i < given_.size(); ++i) {
      if (!binding.given[i]) continue;
      const v1::Input& input = graph_.inputs(static_cast<int>(i));
      if (given_[i]) {
        return absl::InvalidArgumentError(
            absl::StrCat("input '", input.name(), "' is in --inputs and in --weights"));
      }
      given_[i] = true;
      const kiln_tensor& tensor = out_.all[i];
      BindSymbols(input.type().tensor(),
                  absl::MakeSpan(tensor.sizes, static_cast<size_t>(tensor.ndim)), symbols_);
      is_weight_[i] = true;
    }
    return TakeNames(absl::StrJoin(paths, ", "), out_.weights->size(), binding.unused, "tensor");
  }

  absl::StatusOr<RunInputs> Finish(uint64_t seed) {
    out_.seed = seed;
    out_.random = std::find(given_.begin(), given_.end(), true) == given_.end();
    std::vector<std::string> left;
    for (size_t i = 0; i < given_.size(); ++i) {
      const int number = static_cast<int>(i);
      const v1::Input& input = graph_.inputs(number);
      if (!input.type().has_tensor()) {
        KILN_ASSIGN_OR_RETURN(out_.sizes[i], EvaluateSymInt(input.type().sym_int(), symbols_));
        out_.all[i] = DescribeSize(out_.sizes[i]);
        continue;
      }
      if (!given_[i]) {
        KILN_ASSIGN_OR_RETURN(out_.tensors[i], RandomInput(graph_, number, seed, symbols_));
        left.push_back(input.module_names_size() > 0 ? input.module_names(0) : input.name());
      }
      if (!is_weight_[i]) out_.all[i] = Describe(out_.tensors[i]);
    }
    if (!out_.random && !left.empty()) {
      out_.notes.push_back(Note(left, "input", "of the graph stay random"));
    }
    return std::move(out_);
  }

 private:
  // What a file has and the graph does not; an error where that is everything.
  absl::Status TakeNames(const std::string& file, size_t count,
                         const std::vector<std::string>& unused, absl::string_view what) {
    if (count > 0 && count == unused.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no ", what, " of ", file, ", such as '", Shown(unused[0]),
                       "', is an input of the graph, such as '", Shown(AnInputsName(graph_)), "'"));
    }
    if (!unused.empty()) {
      out_.notes.push_back(
          Note(unused, what, absl::StrCat("of ", file, " belong to no input of the graph")));
    }
    return absl::OkStatus();
  }

  const v1::Graph& graph_;
  std::vector<int64_t> symbols_;
  std::vector<bool> given_;  // by input, in a file
  std::vector<bool> is_weight_;
  RunInputs out_;
};

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) {
    return absl::NotFoundError(absl::StrCat("cannot read '", path, "': ", std::strerror(errno)));
  }
  return std::move(text).str();
}

absl::StatusOr<RunInputs> MakeInputs(const v1::Graph& graph, const std::string& spec,
                                     const std::vector<std::string>& weights) {
  InputsMaker maker(graph);
  uint64_t seed = 0;
  if (spec == "random" || absl::StartsWith(spec, "random:")) {
    if (spec != "random" && !absl::SimpleAtoi(absl::string_view(spec).substr(7), &seed)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--inputs is '", spec, "'; expected random:SEED with a number"));
    }
  } else {
    KILN_RETURN_IF_ERROR(maker.TakeNpz(spec));
  }
  if (!weights.empty()) KILN_RETURN_IF_ERROR(maker.TakeWeights(weights));
  return maker.Finish(seed);
}

absl::Status AddInputs(const v1::Graph& graph, const RunInputs& inputs,
                       v1::InterpretRequest& request) {
  request.set_seed(inputs.seed);
  if (inputs.random) return absl::OkStatus();
  int64_t total = 0;
  for (size_t i = 0; i < inputs.all.size(); ++i) {
    if (!graph.inputs(static_cast<int>(i)).type().has_tensor()) continue;
    const kiln_tensor& tensor = inputs.all[i];
    const auto rank = static_cast<size_t>(tensor.ndim);
    const absl::Span<const int64_t> sizes(tensor.sizes, rank), strides(tensor.strides, rank);
    const int64_t element = DTypeSize(static_cast<DType>(tensor.dtype));
    v1::TensorData& data = *request.add_inputs();
    data.mutable_type()->set_dtype(static_cast<v1::DType>(tensor.dtype));
    std::vector<int64_t> contiguous(rank, 1);
    int64_t elements = 1;
    for (size_t d = rank; d-- > 0;) {
      contiguous[d] = elements;
      elements *= sizes[d];
    }
    total += elements * element;
    if (total > kMostSentBytes) {
      return absl::InvalidArgumentError(
          "--check sends the inputs to the server, which takes 60 MiB of them: without --weights "
          "and --inputs FILE it makes them itself, and --expect compares with a file");
    }
    for (size_t d = 0; d < rank; ++d) {
      data.mutable_type()->add_sizes()->set_value(sizes[d]);
      data.mutable_type()->add_strides()->set_value(contiguous[d]);
    }
    data.mutable_data()->resize(static_cast<size_t>(elements * element));
    if (elements == 0) continue;
    runtime::CopyStrided(data.mutable_data()->data(), contiguous,
                         static_cast<const char*>(tensor.data), strides, sizes, element);
  }
  return absl::OkStatus();
}

std::string DescribeInputs(const v1::Graph& graph) {
  std::string out;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const v1::Input& input = graph.inputs(i);
    const absl::string_view role = input.role() == v1::Input::ROLE_PARAMETER ? "parameter"
                                   : input.role() == v1::Input::ROLE_SYMBOL  ? "size"
                                                                             : "input";
    std::vector<std::string> names;
    for (const std::string& name : input.module_names()) names.push_back(Shown(name));
    absl::StrAppendFormat(
        &out, "%4d  %-9s  %-14s %s", i, role, Shown(input.name()),
        input.type().has_tensor() ? TypeText(input.type().tensor(), graph) : "size");
    absl::StrAppend(&out, names.empty() ? "" : "  ", absl::StrJoin(names, " = "), "\n");
  }
  return out;
}

}  // namespace kiln::cli
