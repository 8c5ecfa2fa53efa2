// Vector instructions: element by element in the type's arithmetic, a row of elements at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "client/gcu_simulator/arithmetic.h"
#include "client/gcu_simulator/core.h"
#include "client/gcu_simulator/element.h"
#include "client/gcu_simulator/shaping.h"

namespace kiln::gcu_simulator {
namespace {

constexpr int64_t kChunk = 512;  // elements that are computed together
constexpr int64_t kIssueCycles = 4;

int64_t Quotient(int64_t a, int64_t b) {
  return b == 0 ? 0 : FloorDivide(a, b);
}

int64_t Remainder(int64_t a, int64_t b) {
  return b == 0 ? 0 : a - b * FloorDivide(a, b);
}

float FloatModulo(float a, float b) {
  const float r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

float FloatMaximum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  return std::max(a, b);
}

float FloatMinimum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  return std::min(a, b);
}

float RoundToEven(float x) {
  return std::nearbyint(x);  // in the processor's default mode
}

template <typename T, typename F>
void Each(int64_t n, T* out, const F& f) {
  for (int64_t i = 0; i < n; ++i) out[i] = f(i);
}

// out[i] of floats a, b, c; false where the instruction has no such operands.
bool ComputeFloats(Code code, int64_t n, const float* a, const float* b, const float* c,
                   float* out) {
  const auto unary = [&](auto f) { Each(n, out, [&](int64_t i) -> float { return f(a[i]); }); };
  const auto binary = [&](auto f) {
    Each(n, out, [&](int64_t i) -> float { return f(a[i], b[i]); });
  };
  switch (code) {
    case Code::kVectorCopy:
    case Code::kConvert:
      return unary([](float x) { return x; }), true;
    case Code::kNegate:
      return unary([](float x) { return -x; }), true;
    case Code::kAbsolute:
      return unary([](float x) { return std::fabs(x); }), true;
    case Code::kFloor:
      return unary([](float x) { return std::floor(x); }), true;
    case Code::kCeiling:
      return unary([](float x) { return std::ceil(x); }), true;
    case Code::kRound:
      return unary(RoundToEven), true;
    case Code::kTruncate:
      return unary([](float x) { return std::trunc(x); }), true;
    case Code::kReciprocal:
      return unary([](float x) { return 1 / x; }), true;
    case Code::kSquareRoot:
      return unary([](float x) { return std::sqrt(x); }), true;
    case Code::kReciprocalRoot:
      return unary([](float x) { return static_cast<float>(1 / std::sqrt(double{x})); }), true;
    case Code::kExponential:
      return unary([](float x) { return std::exp(x); }), true;
    case Code::kLogarithm:
      return unary([](float x) { return std::log(x); }), true;
    case Code::kSine:
      return unary([](float x) { return std::sin(x); }), true;
    case Code::kCosine:
      return unary([](float x) { return std::cos(x); }), true;
    case Code::kHyperbolicTangent:
      return unary([](float x) { return std::tanh(x); }), true;
    case Code::kErrorFunction:
      return unary([](float x) { return std::erf(x); }), true;
    case Code::kVectorAdd:
      return binary([](float x, float y) { return x + y; }), true;
    case Code::kVectorSubtract:
      return binary([](float x, float y) { return x - y; }), true;
    case Code::kVectorMultiply:
      return binary([](float x, float y) { return x * y; }), true;
    case Code::kVectorDivide:
      return binary([](float x, float y) { return x / y; }), true;
    case Code::kVectorMinimum:
      return binary(FloatMinimum), true;
    case Code::kVectorMaximum:
      return binary(FloatMaximum), true;
    case Code::kVectorPower:
      return binary([](float x, float y) { return std::pow(x, y); }), true;
    case Code::kVectorModulo:
      return binary(FloatModulo), true;
    case Code::kMultiplyAdd:
      return Each(n, out, [&](int64_t i) { return std::fma(a[i], b[i], c[i]); }), true;
    default:
      return false;
  }
}

bool ComputeIntegers(Code code, int64_t n, const int64_t* a, const int64_t* b, const int64_t* c,
                     int64_t* out) {
  const auto unary = [&](auto f) { Each(n, out, [&](int64_t i) -> int64_t { return f(a[i]); }); };
  const auto binary = [&](auto f) {
    Each(n, out, [&](int64_t i) -> int64_t { return f(a[i], b[i]); });
  };
  switch (code) {
    case Code::kVectorCopy:
    case Code::kConvert:
      return unary([](int64_t x) { return x; }), true;
    case Code::kNegate:
      return unary([](int64_t x) { return -x; }), true;
    case Code::kAbsolute:
      return unary([](int64_t x) { return x < 0 ? -x : x; }), true;
    case Code::kNot:
      return unary([](int64_t x) { return ~x; }), true;
    case Code::kVectorAdd:
      return binary([](int64_t x, int64_t y) { return x + y; }), true;
    case Code::kVectorSubtract:
      return binary([](int64_t x, int64_t y) { return x - y; }), true;
    case Code::kVectorMultiply:
      return binary([](int64_t x, int64_t y) { return x * y; }), true;
    case Code::kVectorDivide:
      return binary(Quotient), true;
    case Code::kVectorModulo:
      return binary(Remainder), true;
    case Code::kVectorMinimum:
      return binary([](int64_t x, int64_t y) { return std::min(x, y); }), true;
    case Code::kVectorMaximum:
      return binary([](int64_t x, int64_t y) { return std::max(x, y); }), true;
    case Code::kVectorAnd:
      return binary([](int64_t x, int64_t y) { return x & y; }), true;
    case Code::kVectorOr:
      return binary([](int64_t x, int64_t y) { return x | y; }), true;
    case Code::kVectorXor:
      return binary([](int64_t x, int64_t y) { return x ^ y; }), true;
    case Code::kMultiplyAdd:
      return Each(n, out, [&](int64_t i) { return a[i] * b[i] + c[i]; }), true;
    default:
      return false;
  }
}

bool IsComparison(Code code) {
  return code >= Code::kVectorEqual && code <= Code::kVectorLessEqual;
}

template <typename T>
void Compare(Code code, int64_t n, const T* a, const T* b, int64_t* out) {
  Each(n, out, [&](int64_t i) -> int64_t {
    switch (code) {
      case Code::kVectorEqual:
        return a[i] == b[i];
      case Code::kVectorNotEqual:
        return a[i] != b[i];
      case Code::kVectorLess:
        return a[i] < b[i];
      default:
        return a[i] <= b[i];
    }
  });
}

// Truncates and saturates; NaN gives 0.
int64_t IntegerOf(float x, ElementType type) {
  if (std::isnan(x)) return 0;
  const double least = static_cast<double>(LeastOf(type));
  const double greatest = static_cast<double>(GreatestOf(type));
  return static_cast<int64_t>(std::clamp(std::trunc(double{x}), least, greatest));
}

// A row of an operand in the arithmetic of its type.
struct Row {
  float floats[kChunk];
  int64_t integers[kChunk];

  void Load(ElementType type, const uint8_t* data, int64_t stride, int64_t n) {
    IsFloating(type) ? LoadFloats(type, data, stride, n, floats)
                     : LoadIntegers(type, data, stride, n, integers);
  }
};

std::optional<Fault> CheckElementwise(Code code, const Tile& out, const Tiles& in) {
  for (const Tile* tile : in) {
    if (!tile->SameExtents(out)) return Misfit("operands have other extents than the result");
    if (MayOverlap(*tile, out) && !tile->SameDescription(out)) {
      return Misfit("the result overlaps an operand that has another description");
    }
  }
  const bool selects = code == Code::kSelect;
  if (selects && in[0]->type != ElementType::kU8) return Misfit("what selects is no u8");
  const ElementType type = in[selects ? 1 : 0]->type;
  for (size_t i = selects ? 1 : 0; i < in.size(); ++i) {
    if (in[i]->type != type) return Misfit("operands have different types");
  }
  const ElementType expected = IsComparison(code) ? ElementType::kU8 : type;
  if (code != Code::kConvert && out.type != expected) {
    return Misfit("the result has another type than the instruction gives");
  }
  return std::nullopt;
}

std::optional<Fault> RunElementwise(Core& core, Code code, const Tile& out, const Tiles& in) {
  if (auto fault = CheckElementwise(code, out, in)) return fault;
  const bool selects = code == Code::kSelect;
  const ElementType type = in[selects ? 1 : 0]->type;
  const bool is_floating = IsFloating(type);
  const bool is_known =
      selects || IsComparison(code) ||
      (is_floating ? ComputeFloats(code, 0, nullptr, nullptr, nullptr, nullptr)
                   : ComputeIntegers(code, 0, nullptr, nullptr, nullptr, nullptr));
  if (!is_known) return Misfit("the instruction has no such type");
  std::vector<const uint8_t*> sources(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    if (auto fault = ReadL1(core, *in[i], sources[i])) return fault;
  }
  uint8_t* target = nullptr;
  if (auto fault = WriteL1(core, out, target)) return fault;
  static thread_local Row rows[3], result;
  const Tile &a = *in[0], &b = in.size() > 1 ? *in[1] : a, &c = in.size() > 2 ? *in[2] : a;
  const Walk walk = JointWalk({&out, &a, &b, &c});
  const int last = walk.rank - 1;
  ForEachRow(walk, [&](const int64_t* offsets) {
    for (int64_t begin = 0; begin < walk.extents[last]; begin += kChunk) {
      const int64_t n = std::min(kChunk, walk.extents[last] - begin);
      const auto place = [&](size_t t, ElementType of) {
        return (offsets[t] + begin * walk.strides[t][last]) * ElementBytes(of);
      };
      for (size_t i = 0; i < in.size(); ++i) {
        rows[i].Load(in[i]->type, sources[i] + place(i + 1, in[i]->type), walk.strides[i + 1][last],
                     n);
      }
      if (IsComparison(code)) {
        is_floating ? Compare(code, n, rows[0].floats, rows[1].floats, result.integers)
                    : Compare(code, n, rows[0].integers, rows[1].integers, result.integers);
      } else if (selects && is_floating) {
        Each(n, result.floats, [&](int64_t i) {
          return rows[0].integers[i] != 0 ? rows[1].floats[i] : rows[2].floats[i];
        });
      } else if (selects) {
        Each(n, result.integers, [&](int64_t i) {
          return rows[0].integers[i] != 0 ? rows[1].integers[i] : rows[2].integers[i];
        });
      } else if (is_floating) {
        ComputeFloats(code, n, rows[0].floats, rows[1].floats, rows[2].floats, result.floats);
      } else {
        ComputeIntegers(code, n, rows[0].integers, rows[1].integers, rows[2].integers,
                        result.integers);
      }
      if (code == Code::kConvert && is_floating && !IsFloating(out.type)) {
        Each(n, result.integers, [&](int64_t i) { return IntegerOf(result.floats[i], out.type); });
      } else if (code == Code::kConvert && !is_floating && IsFloating(out.type)) {
        Each(n, result.floats, [&](int64_t i) { return static_cast<float>(result.integers[i]); });
      }
      uint8_t* to = target + place(0, out.type);
      IsFloating(out.type) ? StoreFloats(out.type, result.floats, walk.strides[0][last], n, to)
                           : StoreIntegers(out.type, result.integers, walk.strides[0][last], n, to);
    }
  });
  return std::nullopt;
}

}  // namespace

std::optional<Fault> RunVector(Core& core, const Instruction& instruction, const Tiles& tiles,
                               int64_t& cycles) {
  int64_t vectors = 0;
  for (const Tile* tile : tiles) vectors = std::max(vectors, CountVectors(*tile));
  cycles = kIssueCycles + vectors * RowOf(instruction.code).cycles;
  if (IsShaping(instruction.code)) return RunShaping(core, instruction, tiles);
  return RunElementwise(core, instruction.code, *tiles[0], {tiles.begin() + 1, tiles.end()});
}

}  // namespace kiln::gcu_simulator
