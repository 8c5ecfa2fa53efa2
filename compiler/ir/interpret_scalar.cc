// What each scalar operation computes. Floating types are double throughout; integers wrap.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compiler/ir/half.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::ir {
namespace {

template <typename F>
void FloatOp1(Lane* d, const Lane* a, int n, F f) {
  for (int i = 0; i < n; ++i) d[i].f = f(a[i].f);
}
template <typename F>
void FloatOp2(Lane* d, const Lane* a, const Lane* b, int n, F f) {
  for (int i = 0; i < n; ++i) d[i].f = f(a[i].f, b[i].f);
}
template <typename F>
void IntOp1(Lane* d, const Lane* a, int n, F f) {
  for (int i = 0; i < n; ++i) d[i].i = f(a[i].i);
}
template <typename F>
void IntOp2(Lane* d, const Lane* a, const Lane* b, int n, F f) {
  for (int i = 0; i < n; ++i) d[i].i = f(a[i].i, b[i].i);
}
template <typename F>
void FloatTest(Lane* d, const Lane* a, const Lane* b, int n, F f) {
  for (int i = 0; i < n; ++i) d[i].i = f(a[i].f, b[i].f);
}
// One generic function for both kinds of comparison.
template <typename F>
void Compare(bool is_float, Lane* d, const Lane* a, const Lane* b, int n, F f) {
  if (is_float) {
    FloatTest(d, a, b, n, f);
  } else {
    IntOp2(d, a, b, n, f);
  }
}

// Two's complement arithmetic without undefined overflow.
int64_t AddWrap(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t SubWrap(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
int64_t MulWrap(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// C's quotient; 0 for b = 0, and the one overflow wraps.
int64_t TruncDivInt(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? SubWrap(0, a) : a / b;
}
int64_t FmodInt(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : a % b;
}
int64_t ModInt(int64_t a, int64_t b) {
  const int64_t r = FmodInt(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
int64_t FloorDiv(int64_t a, int64_t b) {
  const int64_t q = TruncDivInt(a, b);
  const int64_t r = FmodInt(a, b);
  return r != 0 && (r < 0) != (b < 0) ? q - 1 : q;
}
double ModFloat(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double MinNan(double a, double b) {
  return std::isnan(a) || a < b ? a : b;
}
double MaxNan(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

// As torch does: a shift by the width or more, or by a negative count, shifts everything out.
int64_t ShiftLeft(int64_t a, int64_t b, int bits) {
  return b < 0 || b >= bits ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
}
int64_t ShiftRight(int64_t a, int64_t b, int bits) {
  return a >> (b < 0 || b >= bits ? bits - 1 : b);
}
int BitsOf(DType dtype) {
  return static_cast<int>(DTypeSize(dtype)) * 8;
}

// Towards zero; what int64 cannot hold gives its least value, as x86 has it.
int64_t Truncate(double v) {
  constexpr double kLimit = 9223372036854775808.0;
  return v > -kLimit - 1 && v < kLimit ? static_cast<int64_t>(v)
                                       : std::numeric_limits<int64_t>::min();
}

void RunCast(const Step& step, Lane* d, const Lane* a, int n) {
  const bool from_float = IsFloat(step.operand_dtype);
  if (IsFloat(step.dtype)) {
    for (int i = 0; i < n; ++i) d[i].f = from_float ? a[i].f : static_cast<double>(a[i].i);
  } else if (step.dtype == DType::kBool) {
    for (int i = 0; i < n; ++i) d[i].i = from_float ? a[i].f != 0 : a[i].i != 0;
  } else {
    for (int i = 0; i < n; ++i) {
      d[i].i = WrapInteger(step.dtype, from_float ? Truncate(a[i].f) : a[i].i);
    }
  }
}

// The bits of a value as memory would hold it.
uint64_t ToBits(DType dtype, Lane v) {
  switch (dtype) {
    case DType::kF64:
      return std::bit_cast<uint64_t>(v.f);
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(v.f));
    case DType::kF16:
      return HalfFromDouble(v.f);
    case DType::kBF16:
      return BFloat16FromDouble(v.f);
    default:
      return static_cast<uint64_t>(v.i);
  }
}
Lane FromBits(DType dtype, uint64_t bits) {
  Lane v;
  switch (dtype) {
    case DType::kF64:
      v.f = std::bit_cast<double>(bits);
      break;
    case DType::kF32:
      v.f = std::bit_cast<float>(static_cast<uint32_t>(bits));
      break;
    case DType::kF16:
      v.f = DoubleFromHalf(static_cast<uint16_t>(bits));
      break;
    case DType::kBF16:
      v.f = DoubleFromBFloat16(static_cast<uint16_t>(bits));
      break;
    default:
      v.i = WrapInteger(dtype, static_cast<int64_t>(bits));
  }
  return v;
}

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
int64_t Philox(int64_t seed, int64_t stream, int64_t place) {
  const auto low = [](int64_t v) { return static_cast<uint32_t>(v); };
  const auto high = [](int64_t v) { return static_cast<uint32_t>(static_cast<uint64_t>(v) >> 32); };
  uint32_t c[4] = {low(place), high(place), low(stream), high(stream)};
  uint32_t key[2] = {low(seed), high(seed)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return static_cast<int64_t>(c[0] | uint64_t{c[1]} << 32);
}

// Returns false where `op` is not one of these.
bool RunFloatOp(ScalarOp op, Lane* d, const Lane* a, const Lane* b, const Lane* c, int n) {
  switch (op) {
#define KILN_FLOAT1(e, expr)                            \
  case ScalarOp::e:                                     \
    FloatOp1(d, a, n, [](double x) { return (expr); }); \
    return true;
#define KILN_FLOAT2(e, expr)                                         \
  case ScalarOp::e:                                                  \
    FloatOp2(d, a, b, n, [](double x, double y) { return (expr); }); \
    return true;
    KILN_FLOAT2(kAdd, x + y)
    KILN_FLOAT2(kSub, x - y)
    KILN_FLOAT2(kMul, x * y)
    KILN_FLOAT2(kDiv, x / y)
    KILN_FLOAT2(kFloorDiv, std::floor(x / y))
    KILN_FLOAT2(kMod, ModFloat(x, y))
    KILN_FLOAT2(kFmod, std::fmod(x, y))
    KILN_FLOAT2(kMin, MinNan(x, y))
    KILN_FLOAT2(kMax, MaxNan(x, y))
    KILN_FLOAT2(kPow, std::pow(x, y))
    KILN_FLOAT2(kAtan2, std::atan2(x, y))
    KILN_FLOAT2(kCopysign, std::copysign(x, y))
    KILN_FLOAT1(kNeg, -x)
    KILN_FLOAT1(kAbs, std::fabs(x))
    KILN_FLOAT1(kSign, static_cast<double>((x > 0) - (x < 0)))
    KILN_FLOAT1(kExp, std::exp(x))
    KILN_FLOAT1(kExp2, std::exp2(x))
    KILN_FLOAT1(kExpm1, std::expm1(x))
    KILN_FLOAT1(kLog, std::log(x))
    KILN_FLOAT1(kLog2, std::log2(x))
    KILN_FLOAT1(kLog10, std::log10(x))
    KILN_FLOAT1(kLog1p, std::log1p(x))
    KILN_FLOAT1(kSqrt, std::sqrt(x))
    KILN_FLOAT1(kRsqrt, 1 / std::sqrt(x))
    KILN_FLOAT1(kSin, std::sin(x))
    KILN_FLOAT1(kCos, std::cos(x))
    KILN_FLOAT1(kTan, std::tan(x))
    KILN_FLOAT1(kAsin, std::asin(x))
    KILN_FLOAT1(kAcos, std::acos(x))
    KILN_FLOAT1(kAtan, std::atan(x))
    KILN_FLOAT1(kSinh, std::sinh(x))
    KILN_FLOAT1(kCosh, std::cosh(x))
    KILN_FLOAT1(kTanh, std::tanh(x))
    KILN_FLOAT1(kAsinh, std::asinh(x))
    KILN_FLOAT1(kAcosh, std::acosh(x))
    KILN_FLOAT1(kAtanh, std::atanh(x))
    KILN_FLOAT1(kErf, std::erf(x))
    KILN_FLOAT1(kErfc, std::erfc(x))
    KILN_FLOAT1(kSigmoid, 1 / (1 + std::exp(-x)))
    KILN_FLOAT1(kFloor, std::floor(x))
    KILN_FLOAT1(kCeil, std::ceil(x))
    KILN_FLOAT1(kTrunc, std::trunc(x))
    KILN_FLOAT1(kRound, std::nearbyint(x))
#undef KILN_FLOAT1
#undef KILN_FLOAT2
    case ScalarOp::kFma:
      for (int i = 0; i < n; ++i) d[i].f = std::fma(a[i].f, b[i].f, c[i].f);
      return true;
    default:
      return false;
  }
}

// The results are wrapped by the caller. Returns false where `op` is not one of these.
bool RunIntegerOp(const Step& step, Lane* d, const Lane* a, const Lane* b, int n) {
  using I = int64_t;
  const int bits = BitsOf(step.dtype);
  switch (step.op) {
#define KILN_INT1(e, expr)                             \
  case ScalarOp::e:                                    \
    IntOp1(d, a, n, [=](I x) -> I { return (expr); }); \
    return true;
#define KILN_INT2(e, expr)                                     \
  case ScalarOp::e:                                            \
    IntOp2(d, a, b, n, [=](I x, I y) -> I { return (expr); }); \
    return true;
    KILN_INT2(kAdd, AddWrap(x, y))
    KILN_INT2(kSub, SubWrap(x, y))
    KILN_INT2(kMul, MulWrap(x, y))
    KILN_INT2(kFloorDiv, FloorDiv(x, y))
    KILN_INT2(kTruncDiv, TruncDivInt(x, y))
    KILN_INT2(kMod, ModInt(x, y))
    KILN_INT2(kFmod, FmodInt(x, y))
    KILN_INT2(kMin, std::min(x, y))
    KILN_INT2(kMax, std::max(x, y))
    KILN_INT2(kAnd, x & y)
    KILN_INT2(kOr, x | y)
    KILN_INT2(kXor, x ^ y)
    KILN_INT2(kShl, ShiftLeft(x, y, bits))
    KILN_INT2(kShr, ShiftRight(x, y, bits))
    KILN_INT1(kNeg, SubWrap(0, x))
    KILN_INT1(kAbs, x < 0 ? SubWrap(0, x) : x)
    KILN_INT1(kSign, (x > 0) - (x < 0))
    KILN_INT1(kNot, ~x)
    KILN_INT1(kNonzero, x)  // its caller looks
#undef KILN_INT1
#undef KILN_INT2
    default:
      return false;
  }
}

}  // namespace

int64_t WrapInteger(DType dtype, int64_t v) {
  switch (dtype) {
    case DType::kBool:
      return v & 1;
    case DType::kU8:
      return static_cast<uint8_t>(v);
    case DType::kI8:
      return static_cast<int8_t>(v);
    case DType::kI16:
      return static_cast<int16_t>(v);
    case DType::kI32:
      return static_cast<int32_t>(v);
    default:
      return v;
  }
}

Lane ImmediateLane(const Inst& inst) {
  Lane lane;
  if (IsIntegral(inst.dtype)) {
    lane.i = WrapInteger(inst.dtype, inst.immediate_int);
  } else {
    lane.f = inst.immediate_float;
  }
  return lane;
}

void RunScalarOp(const Step& step, Lane* d, const Lane* a, const Lane* b, const Lane* c, int n) {
  const bool is_float = IsFloat(step.operand_dtype);
  switch (step.op) {
    case ScalarOp::kEq:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x == y; });
    case ScalarOp::kNe:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x != y; });
    case ScalarOp::kLt:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x < y; });
    case ScalarOp::kLe:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x <= y; });
    case ScalarOp::kGt:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x > y; });
    case ScalarOp::kGe:
      return Compare(is_float, d, a, b, n, [](auto x, auto y) { return x >= y; });
    case ScalarOp::kIsNan:
      return FloatTest(d, a, a, n, [](double x, double) { return std::isnan(x); });
    case ScalarOp::kIsInf:
      return FloatTest(d, a, a, n, [](double x, double) { return std::isinf(x); });
    case ScalarOp::kSelect:
      for (int i = 0; i < n; ++i) d[i] = a[i].i != 0 ? b[i] : c[i];
      return;
    case ScalarOp::kCast:
      return RunCast(step, d, a, n);
    case ScalarOp::kBitcast:
      for (int i = 0; i < n; ++i) d[i] = FromBits(step.dtype, ToBits(step.operand_dtype, a[i]));
      return;
    case ScalarOp::kPhilox:
      for (int i = 0; i < n; ++i) d[i].i = Philox(a[i].i, b[i].i, c[i].i);
      return;
    default:
      break;
  }
  if (is_float) {
    RunFloatOp(step.op, d, a, b, c, n);
  } else if (RunIntegerOp(step, d, a, b, n) && step.dtype != DType::kI64) {
    for (int i = 0; i < n; ++i) d[i].i = WrapInteger(step.dtype, d[i].i);
  }
}

}  // namespace kiln::ir
