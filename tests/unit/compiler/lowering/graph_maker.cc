#include "tests/unit/compiler/lowering/graph_maker.h"

#include <cstring>

#include "compiler/graph/import.h"
#include "compiler/ir/half.h"
#include "compiler/ir/verify.h"
#include "gtest/gtest.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

void SetSize(v1::SymInt& size, int64_t value) {
  if (value < GraphMaker::kSymbol) {
    size.set_value(value);
    return;
  }
  size.mutable_expr()->set_kind(v1::SymExpr::KIND_SYMBOL);
  size.mutable_expr()->set_symbol(static_cast<uint32_t>(value - GraphMaker::kSymbol));
}

template <typename T>
std::string Bytes(const std::vector<double>& data) {
  std::string bytes(data.size() * sizeof(T), '\0');
  for (size_t i = 0; i < data.size(); ++i) {
    const T value = static_cast<T>(data[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::string Encode(const std::vector<double>& data, v1::DType dtype) {
  if (data.empty()) return "";
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return Bytes<float>(data);
    case v1::DTYPE_FLOAT64:
      return Bytes<double>(data);
    case v1::DTYPE_BFLOAT16: {
      std::vector<double> bits;
      for (const double value : data) bits.push_back(ir::BFloat16FromDouble(value));
      return Bytes<uint16_t>(bits);
    }
    case v1::DTYPE_INT64:
      return Bytes<int64_t>(data);
    case v1::DTYPE_INT32:
      return Bytes<int32_t>(data);
    case v1::DTYPE_INT16:
      return Bytes<int16_t>(data);
    case v1::DTYPE_UINT8:
    case v1::DTYPE_BOOL:
      return Bytes<uint8_t>(data);
    default:
      ADD_FAILURE() << "no encoding for dtype " << dtype;
      return "";
  }
}

}  // namespace

v1::Argument Value(int id) {
  v1::Argument arg;
  arg.set_value(id);
  return arg;
}

v1::Argument Int(int64_t value) {
  v1::Argument arg;
  arg.set_int_(value);
  return arg;
}

v1::Argument Float(double value) {
  v1::Argument arg;
  arg.set_float_(value);
  return arg;
}

v1::Argument Bool(bool value) {
  v1::Argument arg;
  arg.set_bool_(value);
  return arg;
}

v1::Argument String(const std::string& value) {
  v1::Argument arg;
  arg.set_string(value);
  return arg;
}

v1::Argument IntList(const Sizes& values) {
  v1::Argument arg;
  arg.mutable_list();
  for (const int64_t value : values) *arg.mutable_list()->add_items() = Int(value);
  return arg;
}

v1::Argument ValueList(const std::vector<int>& ids) {
  v1::Argument arg;
  arg.mutable_list();
  for (const int id : ids) *arg.mutable_list()->add_items() = Value(id);
  return arg;
}

v1::Argument NoArg() {
  v1::Argument arg;
  arg.mutable_none();
  return arg;
}

GraphMaker::GraphMaker() {
  proto_.set_format_version(1);
}

Sizes GraphMaker::Contiguous(const Sizes& sizes) const {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i];
  }
  return strides;
}

void GraphMaker::SetType(v1::TensorType& type, const Sizes& sizes, const Sizes& strides,
                         v1::DType dtype) {
  type.set_dtype(dtype);
  for (const int64_t size : sizes) SetSize(*type.add_sizes(), size);
  // Symbolic contiguous strides are products; one symbol may stand before constant sizes only.
  for (const int64_t stride : strides) SetSize(*type.add_strides(), stride);
}

int GraphMaker::Input(const Sizes& sizes, const std::vector<double>& data, v1::DType dtype) {
  const Sizes strides = Contiguous(sizes);
  v1::Input& input = *proto_.add_inputs();
  input.set_name("in" + std::to_string(next_id_));
  input.set_role(v1::Input::ROLE_USER);
  SetType(*input.mutable_type()->mutable_tensor(), sizes, strides, dtype);
  HostTensor tensor{static_cast<DType>(dtype), sizes, strides, Encode(data, dtype)};
  for (int64_t& size : tensor.sizes) {
    if (size >= kSymbol) size = symbols_[size - kSymbol];
  }
  inputs_.push_back(std::move(tensor));
  return next_id_++;
}

int GraphMaker::InputStrided(const Sizes& sizes, const Sizes& strides,
                             const std::vector<double>& memory) {
  v1::Input& input = *proto_.add_inputs();
  input.set_name("in" + std::to_string(next_id_));
  input.set_role(v1::Input::ROLE_USER);
  SetType(*input.mutable_type()->mutable_tensor(), sizes, strides, v1::DTYPE_FLOAT32);
  inputs_.push_back({DType::kF32, sizes, strides, Encode(memory, v1::DTYPE_FLOAT32)});
  return next_id_++;
}

int64_t GraphMaker::Symbol(int64_t value) {
  v1::Symbol& symbol = *proto_.add_symbols();
  symbol.set_name("s" + std::to_string(symbols_.size()));
  symbol.set_min(2);
  symbol.set_max(1000);
  symbol.set_hint(value);
  symbols_.push_back(value);
  return kSymbol + static_cast<int64_t>(symbols_.size()) - 1;
}

int GraphMaker::Node(const std::string& op, std::vector<v1::Argument> args, const Sizes& sizes,
                     v1::DType dtype) {
  v1::Node& node = *proto_.add_nodes();
  node.set_name("n" + std::to_string(proto_.nodes_size()));
  node.set_op(op);
  for (v1::Argument& arg : args) *node.add_args() = std::move(arg);
  return MoreResult(sizes, dtype);
}

int GraphMaker::MoreResult(const Sizes& sizes, v1::DType dtype) {
  v1::Node& node = *proto_.mutable_nodes(proto_.nodes_size() - 1);
  SetType(*node.add_results()->mutable_tensor(), sizes, Contiguous(sizes), dtype);
  return next_id_++;
}

void GraphMaker::Keyword(const std::string& name, v1::Argument value) {
  v1::NamedArgument& arg = *proto_.mutable_nodes(proto_.nodes_size() - 1)->add_kwargs();
  arg.set_name(name);
  *arg.mutable_value() = std::move(value);
}

void GraphMaker::Output(int id) {
  proto_.add_outputs()->set_value(id);
}

absl::Status GraphMaker::Lower(ir::Module& module, bool library_steps) const {
  KILN_ASSIGN_OR_RETURN(const graph::Graph graph, graph::Import(proto_, *module.ints));
  LoweringOptions options;
  options.library_steps = library_steps;
  options.mark_parameters = true;
  options.checks_divisors = checks_divisors_;
  return lowering::Lower(graph, options, module);
}

absl::StatusOr<std::vector<ir::ReferenceTensor>> GraphMaker::Run() const {
  ir::Module module;
  KILN_RETURN_IF_ERROR(Lower(module));
  KILN_RETURN_IF_ERROR(ir::Verify(module));
  return ir::Interpret(module, inputs_, symbols_, {});
}

std::vector<double> RunOne(const GraphMaker& maker) {
  const absl::StatusOr<std::vector<ir::ReferenceTensor>> outputs = maker.Run();
  if (!outputs.ok()) {
    ADD_FAILURE() << outputs.status();
    return {};
  }
  if (outputs->size() != 1) {
    ADD_FAILURE() << outputs->size() << " outputs";
    return {};
  }
  const ir::ReferenceTensor& out = (*outputs)[0];
  if (IsFloat(out.dtype)) return out.floats;
  return {out.ints.begin(), out.ints.end()};
}

}  // namespace kiln::lowering
