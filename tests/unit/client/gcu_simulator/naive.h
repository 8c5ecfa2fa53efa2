// Single instructions of the GCU by the plainest reading of proto/gcu/README.md: an element at a
// time, in double precision or 64-bit integers, on an image of L1. It knows nothing of the
// simulator.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kiln::gcu_naive {

using Image = std::vector<uint8_t>;
using Index = std::array<int64_t, 4>;

struct NaiveTile {
  std::string type;  // "f32"
  int rank = 0;
  int64_t address = 0;
  Index extents{1, 1, 1, 1}, strides{};

  int Bytes() const {
    return type == "f32" || type == "i32" ? 4 : type == "f16" || type == "bf16" ? 2 : 1;
  }
  bool IsFloating() const { return type[0] == 'f' || type[0] == 'b'; }
  int64_t At(const Index& index) const {
    int64_t at = 0;
    for (int d = 0; d < rank; ++d) at += index[d] * strides[d];
    return address + at * Bytes();
  }
  void ForEach(const std::function<void(const Index&)>& visit) const {
    Index index{};
    const auto go = [&](auto&& self, int d) -> void {
      if (d == rank) return visit(index);
      for (index[d] = 0; index[d] < extents[d]; ++index[d]) self(self, d + 1);
      index[d] = 0;
    };
    go(go, 0);
  }
};

// `value` to a floating type of `digits` binary digits whose least normal exponent is `least`; ties
// to even.
inline double RoundTo(double value, int digits, int least, double greatest) {
  if (value == 0 || std::isnan(value) || std::isinf(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = m * 2^exponent, 0.5 <= m < 1
  const int unit = std::max(exponent, least + 1) - digits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::fabs(rounded) > greatest ? std::copysign(INFINITY, value) : rounded;
}

inline double RoundToType(const std::string& type, double value) {
  const double narrow = RoundTo(value, 24, -126, std::numeric_limits<float>::max());
  if (type == "f16") return RoundTo(narrow, 11, -14, 65504);
  if (type == "bf16") return RoundTo(narrow, 8, -126, std::ldexp(255.0, 120));
  return narrow;
}

// A number of 16 bits: sign, `exponents` bits of exponent, the rest of the fraction.
inline double DecodeSmall(uint16_t bits, int exponents) {
  const int fractions = 15 - exponents, bias = (1 << (exponents - 1)) - 1;
  const int exponent = bits >> fractions & ((1 << exponents) - 1),
            fraction = bits & ((1 << fractions) - 1);
  const double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == (1 << exponents) - 1) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fractions);
  return sign * std::ldexp((1 << fractions) + fraction, exponent - bias - fractions);
}

// REQUIRES: such a number, or NaN.
inline uint16_t EncodeSmall(double value, int exponents) {
  const int fractions = 15 - exponents, bias = (1 << (exponents - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0, top = ((1 << exponents) - 1) << fractions;
  if (std::isnan(value)) return top | 1 << (fractions - 1);
  if (std::isinf(value)) return sign | top;
  if (value == 0) return sign;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int at = std::max(exponent - 1, 1 - bias);
  const auto scaled = static_cast<int64_t>(std::ldexp(std::fabs(value), fractions - at));
  const bool is_normal = scaled >> fractions != 0;
  return static_cast<uint16_t>(sign | (is_normal ? at + bias : 0) << fractions |
                               (scaled & ((1 << fractions) - 1)));
}

struct Element {
  double real = 0;      // of floating types
  int64_t integer = 0;  // of the others
};

inline Element Load(const Image& image, const NaiveTile& tile, const Index& index) {
  const uint8_t* from = image.data() + tile.At(index);
  Element element;
  uint32_t word = 0;
  std::memcpy(&word, from, tile.Bytes());
  if (tile.type == "f32") {
    float value = 0;
    std::memcpy(&value, &word, 4);
    element.real = value;
  }
  if (tile.type == "f16") element.real = DecodeSmall(static_cast<uint16_t>(word), 5);
  if (tile.type == "bf16") element.real = DecodeSmall(static_cast<uint16_t>(word), 8);
  if (tile.type == "i32") element.integer = static_cast<int32_t>(word);
  if (tile.type == "i8") element.integer = static_cast<int8_t>(word);
  if (tile.type == "u8") element.integer = word;
  return element;
}

// Rounds what is floating; of what is not, the low bytes.
inline void Store(Image& image, const NaiveTile& tile, const Index& index, const Element& element) {
  auto word = static_cast<uint32_t>(element.integer);
  const double rounded = RoundToType(tile.type, element.real);
  if (tile.type == "f32") {
    const auto value = static_cast<float>(rounded);
    std::memcpy(&word, &value, 4);
  }
  if (tile.type == "f16") word = EncodeSmall(rounded, 5);
  if (tile.type == "bf16") word = EncodeSmall(rounded, 8);
  std::memcpy(image.data() + tile.At(index), &word, tile.Bytes());
}

inline int64_t FloorDivide(int64_t a, int64_t b) {
  return b == 0 ? 0
                : static_cast<int64_t>(std::floor(static_cast<double>(a) / static_cast<double>(b)));
}

inline double Real(const std::string& op, double a, double b, double c) {
  if (op == "v.copy") return a;
  if (op == "v.neg") return -a;
  if (op == "v.abs") return std::fabs(a);
  if (op == "v.floor") return std::floor(a);
  if (op == "v.ceil") return std::ceil(a);
  if (op == "v.round") return std::isfinite(a) ? std::copysign(a - std::remainder(a, 1.0), a) : a;
  if (op == "v.trunc") return std::trunc(a);
  if (op == "v.recip") return 1 / a;
  if (op == "v.sqrt") return std::sqrt(a);
  if (op == "v.rsqrt") return 1 / std::sqrt(a);
  if (op == "v.exp") return std::exp(a);
  if (op == "v.log") return std::log(a);
  if (op == "v.sin") return std::sin(a);
  if (op == "v.cos") return std::cos(a);
  if (op == "v.tanh") return std::tanh(a);
  if (op == "v.erf") return std::erf(a);
  if (op == "v.add") return a + b;
  if (op == "v.sub") return a - b;
  if (op == "v.mul") return a * b;
  if (op == "v.div") return a / b;
  if (op == "v.pow") return std::pow(a, b);
  if (op == "v.fma")
    return std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
  if (op == "v.min" || op == "v.max") {
    if (std::isnan(a) || std::isnan(b)) return NAN;
    return (op == "v.min" ? b < a : b > a) ? b : a;
  }
  const double r = std::fmod(a, b);  // v.mod
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

inline int64_t Integer(const std::string& op, int64_t a, int64_t b, int64_t c) {
  if (op == "v.copy") return a;
  if (op == "v.neg") return -a;
  if (op == "v.abs") return std::abs(a);
  if (op == "v.not") return -1 - a;
  if (op == "v.add") return a + b;
  if (op == "v.sub") return a - b;
  if (op == "v.mul") return a * b;
  if (op == "v.div") return FloorDivide(a, b);
  if (op == "v.mod") return b == 0 ? 0 : a - b * FloorDivide(a, b);
  if (op == "v.min") return a < b ? a : b;
  if (op == "v.max") return a < b ? b : a;
  if (op == "v.and") return a & b;
  if (op == "v.or") return a | b;
  if (op == "v.xor") return a ^ b;
  return a * b + c;  // v.fma
}

template <typename T>
bool Holds(const std::string& op, T a, T b) {
  if (op == "v.eq") return a == b;
  if (op == "v.ne") return a != b;
  return op == "v.lt" ? a < b : a <= b;
}

inline void Elementwise(Image& image, const std::string& op, const NaiveTile& out,
                        const std::vector<NaiveTile>& in) {
  out.ForEach([&](const Index& index) {
    std::vector<Element> x;
    for (const NaiveTile& tile : in) x.push_back(Load(image, tile, index));
    x.resize(3);
    Element y;
    if (op == "v.sel") {
      y = x[0].integer != 0 ? x[1] : x[2];
    } else if (op == "v.eq" || op == "v.ne" || op == "v.lt" || op == "v.le") {
      y.integer = in[0].IsFloating() ? Holds(op, x[0].real, x[1].real)
                                     : Holds(op, x[0].integer, x[1].integer);
    } else if (op == "v.cvt") {
      y = x[0];
      if (in[0].IsFloating() && !out.IsFloating()) {
        const double low = out.type == "i32" ? INT32_MIN : out.type == "i8" ? -128 : 0;
        const double high = out.type == "i32" ? INT32_MAX : out.type == "i8" ? 127 : 255;
        y.integer =
            std::isnan(x[0].real)
                ? 0
                : static_cast<int64_t>(std::fmin(std::fmax(std::trunc(x[0].real), low), high));
      }
      if (!in[0].IsFloating()) y.real = static_cast<double>(x[0].integer);
    } else if (in[0].IsFloating()) {
      y.real = Real(op, x[0].real, x[1].real, x[2].real);
    } else {
      y.integer = Integer(op, x[0].integer, x[1].integer, x[2].integer);
    }
    Store(image, out, index, y);
  });
}

// Every sum of the reduction in float32, in the specification's order.
inline double PairwiseReal(const std::string& op, const std::vector<double>& x, size_t begin,
                           size_t n) {
  const auto combine = [&](double a, double b) {
    if (op == "v.rsum") return RoundToType("f32", a + b);
    if (op == "v.rprod") return RoundToType("f32", a * b);
    if (std::isnan(a) || std::isnan(b)) return static_cast<double>(NAN);
    return (op == "v.rmax" ? b > a : b < a) ? b : a;
  };
  if (n > 8) {
    const size_t half = (n / 2 + 7) / 8 * 8;
    return combine(PairwiseReal(op, x, begin, half), PairwiseReal(op, x, begin + half, n - half));
  }
  double result = x[begin];
  for (size_t i = 1; i < n; ++i) result = combine(result, x[begin + i]);
  return result;
}

inline void Reduce(Image& image, const std::string& op, const NaiveTile& out, const NaiveTile& in) {
  out.ForEach([&](const Index& index) {
    std::vector<double> reals;
    std::vector<int64_t> integers;
    in.ForEach([&](const Index& from) {
      for (int d = 0; d < in.rank; ++d) {
        if (out.extents[d] == in.extents[d] && from[d] != index[d]) return;
      }
      reals.push_back(Load(image, in, from).real);
      integers.push_back(Load(image, in, from).integer);
    });
    const int64_t low = in.type == "i32" ? INT32_MIN : in.type == "i8" ? -128 : 0;
    const int64_t high = in.type == "i32" ? INT32_MAX : in.type == "i8" ? 127 : 255;
    Element y{op == "v.rsum"    ? 0
              : op == "v.rprod" ? 1
              : op == "v.rmax"  ? -INFINITY
                                : INFINITY,
              op == "v.rsum"    ? 0
              : op == "v.rprod" ? 1
              : op == "v.rmax"  ? low
                                : high};
    if (!reals.empty()) y.real = PairwiseReal(op, reals, 0, reals.size());
    for (int64_t x : integers) {
      if (op == "v.rsum") y.integer += x;
      if (op == "v.rprod")
        y.integer =
            static_cast<int64_t>(static_cast<uint64_t>(y.integer) * static_cast<uint64_t>(x));
      if (op == "v.rmax") y.integer = std::max(y.integer, x);
      if (op == "v.rmin") y.integer = std::min(y.integer, x);
    }
    Store(image, out, index, y);
  });
}

inline void ArgExtreme(Image& image, const std::string& op, const NaiveTile& out,
                       const NaiveTile& in, int axis) {
  out.ForEach([&](const Index& index) {
    Index at = index;
    Element best;
    int64_t found = 0;
    for (int64_t i = 0; i < in.extents[axis]; ++i) {
      at[axis] = i;
      const Element x = Load(image, in, at);
      const bool is_more =
          in.IsFloating()
              ? (op == "v.argmax" ? x.real > best.real : x.real < best.real)
              : (op == "v.argmax" ? x.integer > best.integer : x.integer < best.integer);
      const bool takes = i == 0 || (!std::isnan(best.real) && (std::isnan(x.real) || is_more));
      if (!takes) continue;
      best = x;
      found = i;
    }
    Store(image, out, index, {0, found});
  });
}

inline void CumulativeSum(Image& image, const NaiveTile& out, const NaiveTile& in, int axis) {
  in.ForEach([&](const Index& index) {
    Element sum;
    Index at = index;
    for (at[axis] = 0; at[axis] <= index[axis]; ++at[axis]) {
      const Element x = Load(image, in, at);
      sum.real = at[axis] == 0 ? x.real : RoundToType("f32", sum.real + x.real);
      sum.integer += x.integer;
    }
    Store(image, out, index, sum);
  });
}

inline void Multiply(Image& image, bool adds, const NaiveTile& c, const NaiveTile& a,
                     const NaiveTile& b) {
  c.ForEach([&](const Index& index) {
    Element sum = adds ? Load(image, c, index) : Element();
    Index left = index, right{};
    right[1] = index[c.rank - 1];
    for (int64_t k = 0; k < b.extents[0]; ++k) {
      left[a.rank - 1] = right[0] = k;
      const Element x = Load(image, a, left), y = Load(image, b, right);
      sum.real = RoundToType("f32", sum.real + RoundToType("f32", x.real * y.real));
      sum.integer += x.integer * y.integer;
    }
    Store(image, c, index, sum);
  });
}

}  // namespace kiln::gcu_naive
