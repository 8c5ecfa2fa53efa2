#include "proto/base/key.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kiln/v1/compile_service.pb.h"
#include "kiln/v1/device.pb.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {
namespace {

constexpr int kMaxDepth = 64;

std::vector<absl::string_view> Sorted(const google::protobuf::RepeatedPtrField<std::string>& in) {
  std::vector<absl::string_view> out(in.begin(), in.end());
  std::sort(out.begin(), out.end());
  return out;
}

void EncodeSorted(Hasher& h, const google::protobuf::RepeatedPtrField<std::string>& in) {
  h.Int(in.size());
  for (absl::string_view s : Sorted(in)) h.Str(s);
}

// Fields that devices of before did not have. One that is absent leaves the encoding as it was:
// each of the others comes with its number and its length.
class DeviceExtensionEncoder {
 public:
  explicit DeviceExtensionEncoder(Hasher& hasher) : h_(hasher) {}

  void Encode(const v1::Device& device) {
    Encode(v1::Device::kMemorySpacesFieldNumber, device.memory_spaces(), [](const auto& space) {
      return std::vector<int64_t>{space.kind(), space.bytes(), space.bytes_per_second()};
    });
    Encode(v1::Device::kComputeUnitsFieldNumber, device.compute_units());
    Encode(v1::Device::kRegistersFieldNumber, device.registers());
    Encode(v1::Device::kVectorBitsFieldNumber, device.vector_bits());
    Encode(v1::Device::kClockMhzFieldNumber, device.clock_mhz());
    Encode(v1::Device::kBinaryFormatsFieldNumber, device.binary_formats(), [](const auto& format) {
      return std::vector<int64_t>{format.kind(), format.version()};
    });
  }

 private:
  void Encode(int field, int64_t value) {
    if (value != 0) h_.Int(field).Int(value);
  }
  template <typename Items, typename Numbers>
  void Encode(int field, const Items& items, Numbers numbers) {
    if (items.empty()) return;
    std::vector<std::vector<int64_t>> sorted;
    for (const auto& item : items) sorted.push_back(numbers(item));
    std::sort(sorted.begin(), sorted.end());
    h_.Int(field).Int(items.size());
    for (const std::vector<int64_t>& item : sorted) {
      for (int64_t number : item) h_.Int(number);
    }
  }

  Hasher& h_;
};

class GraphEncoder {
 public:
  GraphEncoder(const v1::Graph& graph, Hasher& hasher) : graph_(graph), h_(hasher) {}

  void Encode() {
    h_.Int(graph_.format_version());
    h_.Int(graph_.inputs_size());
    for (const v1::Input& input : graph_.inputs()) {
      h_.Int(input.role());
      Encode(input.type());
    }
    h_.Int(graph_.constants_size());
    for (const v1::Constant& constant : graph_.constants()) {
      Encode(constant.type());
      h_.Str(constant.data());
    }
    h_.Int(graph_.nodes_size());
    for (const v1::Node& node : graph_.nodes()) Encode(node);
    h_.Int(graph_.outputs_size());
    for (const v1::Output& output : graph_.outputs()) Encode(output);
    h_.Int(graph_.mutations_size());
    for (const v1::Mutation& mutation : graph_.mutations()) {
      h_.Int(mutation.input()).Int(mutation.value());
    }
    // Last, and only where asked for: other keys stay what they were.
    if (graph_.deterministic()) h_.Str("deterministic");
  }

 private:
  void Encode(const v1::Node& node) {
    h_.Str(node.op());
    h_.Int(node.args_size());
    for (const v1::Argument& arg : node.args()) Encode(arg, 0);
    std::vector<const v1::NamedArgument*> kwargs;
    for (const v1::NamedArgument& kwarg : node.kwargs()) kwargs.push_back(&kwarg);
    std::stable_sort(kwargs.begin(), kwargs.end(),
                     [](const auto* a, const auto* b) { return a->name() < b->name(); });
    h_.Int(static_cast<int64_t>(kwargs.size()));
    for (const v1::NamedArgument* kwarg : kwargs) {
      h_.Str(kwarg->name());
      Encode(kwarg->value(), 0);
    }
    h_.Int(node.results_size());
    for (const v1::ValueType& result : node.results()) Encode(result);
  }

  void Encode(const v1::Argument& arg, int depth) {
    h_.Int(arg.kind_case());
    if (depth > kMaxDepth) return;
    switch (arg.kind_case()) {
      case v1::Argument::kValue:
        h_.Int(arg.value());
        break;
      case v1::Argument::kInt:
        h_.Int(arg.int_());
        break;
      case v1::Argument::kFloat:
        h_.Float(arg.float_());
        break;
      case v1::Argument::kBool:
        h_.Int(arg.bool_());
        break;
      case v1::Argument::kString:
        h_.Str(arg.string());
        break;
      case v1::Argument::kDtype:
        h_.Int(arg.dtype());
        break;
      case v1::Argument::kSymInt:
        Encode(arg.sym_int());
        break;
      case v1::Argument::kList:
        h_.Int(arg.list().items_size());
        for (const v1::Argument& item : arg.list().items()) Encode(item, depth + 1);
        break;
      case v1::Argument::kComplex:
        h_.Float(arg.complex().real()).Float(arg.complex().imag());
        break;
      case v1::Argument::kNone:
      case v1::Argument::KIND_NOT_SET:
        break;
    }
  }

  void Encode(const v1::ValueType& type) {
    h_.Int(type.kind_case());
    if (type.has_tensor()) Encode(type.tensor());
    if (type.has_sym_int()) Encode(type.sym_int());
  }

  void Encode(const v1::TensorType& type) {
    h_.Int(type.dtype());
    h_.Int(type.sizes_size());
    for (const v1::SymInt& size : type.sizes()) Encode(size);
    h_.Int(type.strides_size());
    for (const v1::SymInt& stride : type.strides()) Encode(stride);
    Encode(type.storage_offset());
  }

  void Encode(const v1::Output& output) {
    h_.Int(output.kind_case());
    if (output.kind_case() == v1::Output::kValue) h_.Int(output.value());
    if (output.has_sym_int()) Encode(output.sym_int());
  }

  // An absent number and zero are one value.
  void Encode(const v1::SymInt& size) {
    if (size.has_expr()) {
      h_.Int(1);
      Encode(size.expr(), 0);
    } else {
      h_.Int(0).Int(size.value());
    }
  }

  void Encode(const v1::SymExpr& expr, int depth) {
    h_.Int(expr.kind());
    if (depth > kMaxDepth) return;
    if (expr.kind() == v1::SymExpr::KIND_CONSTANT) h_.Int(expr.constant());
    if (expr.kind() == v1::SymExpr::KIND_SYMBOL) EncodeSymbol(expr.symbol());
    h_.Int(expr.operands_size());
    for (const v1::SymExpr& operand : expr.operands()) Encode(operand, depth + 1);
  }

  void EncodeSymbol(uint32_t index) {
    auto [it, first_use] = numbers_.try_emplace(index, numbers_.size());
    h_.Int(static_cast<int64_t>(it->second));
    if (first_use && index < static_cast<uint32_t>(graph_.symbols_size())) {
      const v1::Symbol& symbol = graph_.symbols(static_cast<int>(index));
      h_.Int(symbol.min()).Int(symbol.max()).Int(symbol.hint());
    }
  }

  const v1::Graph& graph_;
  Hasher& h_;
  absl::flat_hash_map<uint32_t, size_t> numbers_;
};

}  // namespace

Digest GraphFingerprint(const v1::Graph& graph) {
  Hasher h;
  h.Str("kiln graph").Int(kKeyEncodingVersion);
  GraphEncoder(graph, h).Encode();
  return h.Finish();
}

v1::Device KeyedDevice(const v1::Device& device) {
  v1::Device keyed = device;
  keyed.clear_index();
  keyed.clear_model_name();
  keyed.clear_processors();
  keyed.clear_memory_bytes();
  keyed.clear_driver_version();
  for (v1::MemorySpace& space : *keyed.mutable_memory_spaces()) {
    if (space.kind() == v1::MemorySpace::KIND_GLOBAL) space.clear_bytes();
  }
  return keyed;
}

v1::CompileOptions KeyedOptions(const v1::CompileOptions& options) {
  v1::CompileOptions keyed = options;
  if (keyed.optimization_level() == 0) keyed.set_optimization_level(kDefaultOptimizationLevel);
  return keyed;
}

Digest DeviceFingerprint(const v1::Device& device) {
  const v1::Device keyed = KeyedDevice(device);
  Hasher h;
  h.Str("kiln device").Int(kKeyEncodingVersion).Int(keyed.target()).Str(keyed.arch());
  EncodeSorted(h, keyed.features());
  h.Int(keyed.l1_bytes()).Int(keyed.l2_bytes()).Int(keyed.l3_bytes());
  EncodeSorted(h, keyed.libraries());
  DeviceExtensionEncoder(h).Encode(keyed);
  return h.Finish();
}

Digest OptionsFingerprint(const v1::CompileOptions& options) {
  const v1::CompileOptions keyed = KeyedOptions(options);
  Hasher h;
  h.Str("kiln options").Int(kKeyEncodingVersion);
  h.Int(keyed.optimization_level()).Int(keyed.disable_fusion()).Int(keyed.fast_math());
  EncodeSorted(h, keyed.disabled_passes());
  h.Int(keyed.debug());
  // Last, and only where asked for: other keys stay what they were.
  if (keyed.prepare_memory() != 0) h.Str("prepare_memory").Int(keyed.prepare_memory());
  if (keyed.autotune()) h.Str("autotune");
  return h.Finish();
}

Digest ArtifactKey(const v1::Graph& graph, const v1::Device& device,
                   const v1::CompileOptions& options, absl::string_view compiler_build) {
  Hasher h;
  h.Str("kiln artifact").Raw(GraphFingerprint(graph).view());
  h.Raw(DeviceFingerprint(device).view()).Raw(OptionsFingerprint(options).view());
  return h.Str(compiler_build).Finish();
}

Digest KernelKey(absl::string_view toolchain, absl::Span<const std::string> arguments,
                 absl::Span<const absl::string_view> sources) {
  Hasher h;
  h.Str("kiln kernel").Int(kKeyEncodingVersion).Str(toolchain);
  h.Int(static_cast<int64_t>(arguments.size()));
  for (const std::string& argument : arguments) h.Str(argument);
  h.Int(static_cast<int64_t>(sources.size()));
  for (absl::string_view source : sources) h.Str(source);
  return h.Finish();
}

Digest ChoiceKey(const v1::Device& device, const v1::CompileOptions& options,
                 absl::Span<const Candidate> candidates) {
  const v1::CompileOptions keyed = KeyedOptions(options);
  Hasher h;
  h.Str("kiln choice").Int(kKeyEncodingVersion).Raw(DeviceFingerprint(device).view());
  h.Int(keyed.optimization_level()).Int(keyed.fast_math());
  h.Int(static_cast<int64_t>(candidates.size()));
  for (const Candidate& candidate : candidates) {
    h.Raw(candidate.kernel.view()).Int(static_cast<int64_t>(candidate.sizes.size()));
    for (const std::optional<int64_t> size : candidate.sizes) {
      h.Int(size.has_value()).Int(size.value_or(0));
    }
  }
  return h.Finish();
}

}  // namespace kiln
