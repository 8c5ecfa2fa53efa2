#include "proto/base/random_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kiln/v1/graph.pb.h"
#include "proto/base/scramble.h"
#include "proto/base/status_macros.h"

namespace kiln {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxTensorBytes = int64_t{1} << 36;

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Scramble(state_ += kScrambleStep); }
  // Sum of four uniforms, centred and scaled to deviation 1: close to normal, and exact arithmetic
  // on every machine.
  double Normal() {
    uint64_t bits = Next();
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>((bits >> (16 * i)) & 0xFFFF);
    return (static_cast<double>(sum) - 131070.0) / 37837.22;
  }

 private:
  uint64_t state_;
};

absl::StatusOr<int64_t> Evaluate(const v1::SymExpr& expr, absl::Span<const int64_t> symbols,
                                 int depth) {
  if (depth > kMaxDepth) return absl::InvalidArgumentError("a size expression is nested too deep");
  switch (expr.kind()) {
    case v1::SymExpr::KIND_CONSTANT:
      return expr.constant();
    case v1::SymExpr::KIND_SYMBOL:
      if (expr.symbol() >= symbols.size()) {
        return absl::InvalidArgumentError(absl::StrCat("no symbol number ", expr.symbol()));
      }
      return symbols[expr.symbol()];
    default:
      break;
  }
  if (expr.operands_size() < 1) {
    return absl::InvalidArgumentError("a size expression lacks its operands");
  }
  KILN_ASSIGN_OR_RETURN(int64_t value, Evaluate(expr.operands(0), symbols, depth + 1));
  for (int i = 1; i < expr.operands_size(); ++i) {
    KILN_ASSIGN_OR_RETURN(int64_t rhs, Evaluate(expr.operands(i), symbols, depth + 1));
    bool overflow = false;
    switch (expr.kind()) {
      case v1::SymExpr::KIND_ADD:
        overflow = __builtin_add_overflow(value, rhs, &value);
        break;
      case v1::SymExpr::KIND_MUL:
        overflow = __builtin_mul_overflow(value, rhs, &value);
        break;
      case v1::SymExpr::KIND_FLOOR_DIV:
      case v1::SymExpr::KIND_MOD: {
        if (rhs == 0) return absl::InvalidArgumentError("a size expression divides by zero");
        if (rhs == -1) {  // value / -1 overflows in C++, so it is not computed
          if (expr.kind() == v1::SymExpr::KIND_MOD) {
            value = 0;
          } else {
            overflow = __builtin_sub_overflow(int64_t{0}, value, &value);
          }
          break;
        }
        int64_t remainder = value % rhs;
        bool adjust = remainder != 0 && (remainder < 0) != (rhs < 0);
        value = expr.kind() == v1::SymExpr::KIND_MOD ? remainder + (adjust ? rhs : 0)
                                                     : value / rhs - (adjust ? 1 : 0);
        break;
      }
      case v1::SymExpr::KIND_MIN:
        value = std::min(value, rhs);
        break;
      case v1::SymExpr::KIND_MAX:
        value = std::max(value, rhs);
        break;
      default:
        return absl::InvalidArgumentError("a size expression has an unknown kind");
    }
    if (overflow) return absl::InvalidArgumentError("a size expression overflows 64 bits");
  }
  return value;
}

template <typename T>
void Store(std::string& data, int64_t index, T value) {
  std::memcpy(data.data() + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// float -> bfloat16 and float16 by truncation of an already coarse random value.
uint16_t ToBFloat16(float v) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16);
}
uint16_t ToFloat16(float v) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(v));
}

void Fill(HostTensor& t, bool parameter, SplitMix64& random) {
  int64_t fan_in = 1;
  for (size_t i = 1; i < t.sizes.size(); ++i) fan_in *= t.sizes[i];
  double deviation =
      parameter ? 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(fan_in, 1))) : 1.0;
  bool near_one = parameter && t.sizes.size() == 1;
  int64_t count = static_cast<int64_t>(t.data.size()) / DTypeSize(t.dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (IsIntegral(t.dtype)) {
      int64_t v = t.dtype == DType::kBool ? 1 : static_cast<int64_t>(random.Next() >> 63);
      switch (DTypeSize(t.dtype)) {
        case 1:
          Store(t.data, i, static_cast<int8_t>(v));
          break;
        case 2:
          Store(t.data, i, static_cast<int16_t>(v));
          break;
        case 4:
          Store(t.data, i, static_cast<int32_t>(v));
          break;
        default:
          Store(t.data, i, v);
          break;
      }
      continue;
    }
    double v = random.Normal();
    v = near_one ? std::abs(1.0 + 0.02 * v) : v * deviation;
    switch (t.dtype) {
      case DType::kF64:
        Store(t.data, i, v);
        break;
      case DType::kBF16:
        Store(t.data, i, ToBFloat16(static_cast<float>(v)));
        break;
      case DType::kF16:
        Store(t.data, i, ToFloat16(static_cast<float>(v)));
        break;
      default:
        Store(t.data, i, static_cast<float>(v));
        break;
    }
  }
}

}  // namespace

absl::StatusOr<int64_t> EvaluateSymInt(const v1::SymInt& size, absl::Span<const int64_t> symbols) {
  if (!size.has_expr()) return size.value();
  return Evaluate(size.expr(), symbols, 0);
}

std::vector<int64_t> HintSymbols(const v1::Graph& graph) {
  std::vector<int64_t> values;
  for (const v1::Symbol& s : graph.symbols()) {
    values.push_back(std::max(s.min(), std::min(s.hint(), s.max())));
  }
  return values;
}

absl::StatusOr<HostTensor> RandomInput(const v1::Graph& graph, int number, uint64_t seed,
                                       absl::Span<const int64_t> symbols) {
  const v1::Input& input = graph.inputs(number);
  const v1::TensorType& type = input.type().tensor();
  HostTensor t;
  KILN_ASSIGN_OR_RETURN(t.dtype, DTypeFromProto(type.dtype()));
  if (IsOpaque(t.dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "input '", input.name(), "' is ", DTypeName(t.dtype), ": give its values in a file"));
  }
  if (type.strides_size() != type.sizes_size()) {
    return absl::InvalidArgumentError(absl::StrCat("input '", input.name(), "' has ",
                                                   type.sizes_size(), " sizes and ",
                                                   type.strides_size(), " strides"));
  }
  int64_t last = 0;
  bool empty = false;
  for (int d = 0; d < type.sizes_size(); ++d) {
    KILN_ASSIGN_OR_RETURN(int64_t size, EvaluateSymInt(type.sizes(d), symbols));
    KILN_ASSIGN_OR_RETURN(int64_t stride, EvaluateSymInt(type.strides(d), symbols));
    t.sizes.push_back(size);
    t.strides.push_back(stride);
    empty = empty || size <= 0;
    int64_t reach = 0;
    if (stride < 0 || (size > 0 && __builtin_mul_overflow(size - 1, stride, &reach)) ||
        __builtin_add_overflow(last, reach, &last) || last > kMaxTensorBytes / 16) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", input.name(), "' has impossible sizes or strides"));
    }
  }
  t.data.resize(empty ? 0 : static_cast<size_t>((last + 1) * DTypeSize(t.dtype)));
  SplitMix64 random(seed * kScrambleStep + static_cast<uint64_t>(number));
  Fill(t, input.role() == v1::Input::ROLE_PARAMETER, random);
  return t;
}

absl::StatusOr<std::vector<HostTensor>> RandomInputs(const v1::Graph& graph, uint64_t seed) {
  const std::vector<int64_t> symbols = HintSymbols(graph);
  std::vector<HostTensor> out;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    if (!graph.inputs(i).type().has_tensor()) continue;
    KILN_ASSIGN_OR_RETURN(HostTensor tensor, RandomInput(graph, i, seed, symbols));
    out.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace kiln
