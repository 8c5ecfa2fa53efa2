#include "client/cli/inputs.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/npz.h"
#include "client/runtime/strided_copy.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/status_macros.h"

namespace kiln::cli {
namespace {

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
void BindSymbols(const v1::TensorType& type, const HostTensor& tensor,
                 std::vector<int64_t>& symbols) {
  for (int d = 0; d < type.sizes_size() && d < static_cast<int>(tensor.sizes.size()); ++d) {
    const v1::SymExpr& expr = type.sizes(d).expr();
    if (expr.kind() == v1::SymExpr::KIND_SYMBOL && expr.symbol() < symbols.size()) {
      symbols[expr.symbol()] = tensor.sizes[d];
    }
  }
}

// The array of that name, else the one of the second name, else null.
const NpzArray* FindArray(absl::Span<const NpzArray> arrays, absl::string_view name,
                          absl::string_view second) {
  const NpzArray* found = nullptr;
  for (const NpzArray& array : arrays) {
    if (array.name == name) return &array;
    if (found == nullptr && array.name == second) found = &array;
  }
  return found;
}

// An input that is a size: its symbol takes the file's number, where there is one.
void BindSize(const v1::Input& input, absl::Span<const NpzArray> arrays,
              std::vector<int64_t>& symbols) {
  const v1::SymExpr& expr = input.type().sym_int().expr();
  const NpzArray* array = FindArray(arrays, input.name(), "");
  if (array == nullptr || array->tensor.dtype != DType::kI64 ||
      array->tensor.data.size() != sizeof(int64_t) || expr.kind() != v1::SymExpr::KIND_SYMBOL ||
      expr.symbol() >= symbols.size()) {
    return;
  }
  std::memcpy(&symbols[expr.symbol()], array->tensor.data.data(), sizeof(int64_t));
}

absl::StatusOr<std::vector<HostTensor>> FromNpz(const v1::Graph& graph, const std::string& path,
                                                std::vector<int64_t>& symbols) {
  KILN_ASSIGN_OR_RETURN(std::string data, ReadFile(path));
  KILN_ASSIGN_OR_RETURN(std::vector<NpzArray> arrays, ParseNpz(data));
  std::vector<const v1::Input*> inputs;
  std::vector<HostTensor> found;
  for (const v1::Input& input : graph.inputs()) {
    if (!input.type().has_tensor()) {
      BindSize(input, arrays, symbols);
      continue;
    }
    std::string positional = absl::StrCat("arr_", inputs.size());
    const NpzArray* array = FindArray(arrays, input.name(), positional);
    if (array == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has no array '", input.name(), "' or '", positional, "'"));
    }
    BindSymbols(input.type().tensor(), array->tensor, symbols);
    inputs.push_back(&input);
    found.push_back(array->tensor);
  }
  std::vector<HostTensor> out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    absl::StatusOr<HostTensor> tensor = Restride(found[i], inputs[i]->type().tensor(), symbols);
    if (!tensor.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("array for input '", inputs[i]->name(), "' ", tensor.status().message()));
    }
    out.push_back(*std::move(tensor));
  }
  return out;
}

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

absl::StatusOr<RunInputs> MakeInputs(const v1::Graph& graph, const std::string& spec) {
  RunInputs out;
  std::vector<int64_t> symbols = HintSymbols(graph);
  if (spec == "random" || absl::StartsWith(spec, "random:")) {
    if (spec != "random" && !absl::SimpleAtoi(absl::string_view(spec).substr(7), &out.seed)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--inputs is '", spec, "'; expected random:SEED with a number"));
    }
    KILN_ASSIGN_OR_RETURN(out.tensors, RandomInputs(graph, out.seed));
  } else {
    out.random = false;
    KILN_ASSIGN_OR_RETURN(out.tensors, FromNpz(graph, spec, symbols));
  }
  for (const v1::Input& input : graph.inputs()) {
    if (input.type().has_tensor()) continue;
    KILN_ASSIGN_OR_RETURN(int64_t size, EvaluateSymInt(input.type().sym_int(), symbols));
    out.sizes.push_back(size);
  }
  size_t tensor = 0, size = 0;
  for (const v1::Input& input : graph.inputs()) {
    out.all.push_back(input.type().has_tensor() ? Describe(out.tensors[tensor++])
                                                : DescribeSize(out.sizes[size++]));
  }
  return out;
}

absl::Status AddInputs(const RunInputs& inputs, v1::InterpretRequest& request) {
  request.set_seed(inputs.seed);
  if (inputs.random) return absl::OkStatus();
  for (const HostTensor& tensor : inputs.tensors) {
    v1::TensorData& data = *request.add_inputs();
    data.mutable_type()->set_dtype(static_cast<v1::DType>(DTypeToProto(tensor.dtype)));
    std::vector<int64_t> contiguous(tensor.sizes.size(), 1);
    int64_t elements = 1;
    for (size_t d = tensor.sizes.size(); d-- > 0;) {
      contiguous[d] = elements;
      elements *= tensor.sizes[d];
    }
    for (size_t d = 0; d < tensor.sizes.size(); ++d) {
      data.mutable_type()->add_sizes()->set_value(tensor.sizes[d]);
      data.mutable_type()->add_strides()->set_value(contiguous[d]);
    }
    data.mutable_data()->resize(elements * DTypeSize(tensor.dtype));
    if (elements == 0) continue;
    runtime::CopyStrided(data.mutable_data()->data(), contiguous, tensor.data.data(),
                         tensor.strides, tensor.sizes, DTypeSize(tensor.dtype));
  }
  return absl::OkStatus();
}

}  // namespace kiln::cli
