#include "compiler/tools/run_module.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compiler/ir/interpret.h"
#include "compiler/schedule/interpret.h"
#include "proto/base/scramble.h"
#include "proto/base/status_macros.h"

namespace kiln::tools {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 32;  // of one input
constexpr int kFirstValues = 8;

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Scramble(state_ += kScrambleStep); }

 private:
  uint64_t state_;
};

template <typename T>
void Put(char* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Values in [-1, 1) with eight bits, exact in every floating type.
void PutRandom(DType dtype, uint64_t bits, char* at) {
  const int eighth_bits = static_cast<int>(bits >> 56) - 128;
  const float value = static_cast<float>(eighth_bits) / 128;
  uint32_t single = 0;
  std::memcpy(&single, &value, sizeof(single));
  switch (dtype) {
    case DType::kF64:
      return Put(at, static_cast<double>(value));
    case DType::kF32:
      return Put(at, value);
    case DType::kBF16:
      return Put(at, static_cast<uint16_t>(single >> 16));
    case DType::kF16: {
      // Rebias the exponent from 127 to 15; the values are 0 or at least 2^-7, so none is
      // subnormal.
      const uint32_t magnitude = single & 0x7fffffff;
      const uint32_t half = magnitude == 0 ? 0 : (magnitude >> 13) - (112 << 10);
      return Put(at, static_cast<uint16_t>((single >> 16 & 0x8000) | half));
    }
    case DType::kBool:
      return Put(at, uint8_t{1});
    default:
      std::memset(at, 0, DTypeSize(dtype));
      *at = static_cast<char>(bits >> 63);  // little endian
  }
}

class InputMaker {
 public:
  InputMaker(const ir::Module& module, absl::Span<const int64_t> symbols, uint64_t seed)
      : module_(module), symbols_(symbols), seed_(seed) {}

  absl::StatusOr<HostTensor> Make(const ir::Buffer& buffer) const {
    HostTensor tensor{.dtype = buffer.dtype};
    int64_t reach = 1;
    bool empty = false;
    for (size_t i = 0; i < buffer.sizes.size(); ++i) {
      tensor.sizes.push_back(Evaluate(buffer.sizes[i]));
      tensor.strides.push_back(Evaluate(buffer.strides[i]));
      int64_t span = 0;
      if (tensor.sizes[i] < 0 || tensor.strides[i] < 0 ||
          __builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &span) ||
          __builtin_add_overflow(reach, std::max<int64_t>(span, 0), &reach)) {
        return absl::InvalidArgumentError(
            absl::StrCat("buffer @", buffer.name, " has an impossible size"));
      }
      empty |= tensor.sizes[i] == 0;
    }
    const int64_t width = DTypeSize(buffer.dtype);
    if (reach > kMaxBytes / width) {
      return absl::ResourceExhaustedError(
          absl::StrCat("buffer @", buffer.name, " is too large to be made up"));
    }
    const bool is_constant = buffer.kind == ir::BufferKind::kConstant;
    Random random(seed_ * 1000003 + static_cast<uint64_t>(buffer.index) * 2 + is_constant);
    tensor.data.resize(empty ? 0 : reach * width);
    for (size_t at = 0; at < tensor.data.size(); at += width) {
      PutRandom(buffer.dtype, random.Next(), &tensor.data[at]);
    }
    return tensor;
  }

 private:
  int64_t Evaluate(ir::IntExpr e) const {
    return module_.ints->Evaluate(e, [this](ir::IntExpr leaf) {
      return leaf.kind() == ir::IntKind::kSymbol ? symbols_[leaf.id()] : 0;
    });
  }

  const ir::Module& module_;
  absl::Span<const int64_t> symbols_;
  const uint64_t seed_;
};

template <typename T>
std::string Values(const std::vector<T>& values) {
  double sum = 0, weighted = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<double>(values[i]);
    weighted += static_cast<double>(values[i]) * static_cast<double>(values.size() - i);
  }
  const size_t n = std::min<size_t>(values.size(), kFirstValues);
  const std::string first = absl::StrJoin(
      values.begin(), values.begin() + n, " ",
      [](std::string* out, T v) { absl::StrAppendFormat(out, "%.6g", static_cast<double>(v)); });
  return absl::StrFormat("sum %.10g weighted %.10g first %s%s", sum, weighted, first,
                         values.size() > n ? " ..." : "");
}

}  // namespace

absl::StatusOr<std::string> RunModule(const ir::Module& module,
                                      const std::vector<schedule::Tree>& trees,
                                      const RunOptions& options) {
  std::vector<int64_t> symbols = options.symbols;
  if (symbols.empty()) {
    for (const ir::IntContext::SymbolInfo& s : module.ints->symbols()) symbols.push_back(s.hint);
  }
  if (symbols.size() != module.ints->symbols().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the module has ", module.ints->symbols().size(),
                                                   " symbols, not ", symbols.size()));
  }
  const InputMaker maker(module, symbols, options.seed);
  std::vector<HostTensor> inputs;
  std::vector<std::string> constants;
  for (const ir::Buffer& buffer : module.buffers) {
    const bool is_input = buffer.kind == ir::BufferKind::kInput;
    if (!is_input && buffer.kind != ir::BufferKind::kConstant) continue;
    KILN_ASSIGN_OR_RETURN(HostTensor tensor, maker.Make(buffer));
    const auto number = static_cast<size_t>(buffer.index);
    if (is_input) {
      inputs.resize(std::max(inputs.size(), number + 1));
      inputs[number] = std::move(tensor);
    } else {
      constants.resize(std::max(constants.size(), number + 1));
      constants[number] = std::move(tensor.data);
    }
  }
  KILN_ASSIGN_OR_RETURN(std::vector<ir::ReferenceTensor> outputs,
                        trees.empty() ? ir::Interpret(module, inputs, symbols, constants)
                                      : schedule::Interpret(module, trees, inputs, symbols,
                                                            constants, {.seed = options.seed}));
  std::string report;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ir::ReferenceTensor& t = outputs[i];
    absl::StrAppend(&report, "output ", i, ": ", std::string(DTypeName(t.dtype)), "[",
                    absl::StrJoin(t.sizes, ","), "] ",
                    IsFloat(t.dtype) ? Values(t.floats) : Values(t.ints), "\n");
  }
  return report;
}

}  // namespace kiln::tools
