#include "compiler/ir/half.h"

#include <bit>
#include <cmath>

namespace kiln::ir {
namespace {

// Rounds |value| to `mantissa_bits` after the leading one, exponents from `min_exponent` (below it
// the spacing stays, as subnormals have it) to `max_exponent`; encodes as sign, exponent, mantissa.
uint16_t Encode(double value, int mantissa_bits, int min_exponent, int max_exponent) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int bias = 1 - min_exponent;
  const uint16_t infinity = static_cast<uint16_t>((max_exponent + bias + 1) << mantissa_bits);
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | infinity | 1 << (mantissa_bits - 1));
  }
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < min_exponent) exponent = min_exponent;
  // In units of the last place; a carry into the next power of two encodes itself.
  const auto units =
      static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent)));
  const uint64_t hidden = uint64_t{1} << mantissa_bits;
  const uint64_t code =
      units < hidden ? units
                     : (static_cast<uint64_t>(exponent + bias) << mantissa_bits) + (units - hidden);
  return code >= infinity || exponent > max_exponent ? sign | infinity
                                                     : static_cast<uint16_t>(sign | code);
}

}  // namespace

double DoubleFromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double magnitude = 0;
  if (exponent == 31) {
    magnitude = mantissa != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, -24);
  } else {
    magnitude = std::ldexp(1024 + mantissa, exponent - 25);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

double DoubleFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t HalfFromDouble(double value) {
  return Encode(value, 10, -14, 15);
}
uint16_t BFloat16FromDouble(double value) {
  return Encode(value, 7, -126, 127);
}

}  // namespace kiln::ir
