// Goes on where the part about memory ends: division of integers.
// ---- Division of integers ------------------------------------------------------------------

#ifdef __AVX__
// Exact, whatever --fast-math allows elsewhere.
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off) reassociate(off) reciprocal(off)

// Of integers a and b that are numbers of a type with a significand of p bits, a / b in that type
// has the whole part of the true quotient: to be rounded up to an integer n, that would have to
// come as near as n / 2^(p + 1); it is 1 / b away from it at least, and n * b < a + b <= 2^(p + 1).
template <class F, class T, int W>
KILN_FN Vec<T, W> KTruncDivAs(Vec<T, W> a, Vec<T, W> b) {
  return __builtin_convertvector(
      __builtin_convertvector(a, Vec<F, W>) / __builtin_convertvector(b, Vec<F, W>), Vec<T, W>);
}

// Integers from -2^50 to 2^50, whose sum with 1.5 * 2^52 has them in its last bits.
inline constexpr double kWholeBias = 0x1.8p52;
inline constexpr long kWholeBits = 0x4338000000000000;
inline constexpr unsigned long kWholeLimit = 1ul << 50;
template <int W>
KILN_FN Vec<double, W> KWholeToDouble(Vec<long, W> x) {
  return __builtin_bit_cast(Vec<double, W>, x + kWholeBits) - kWholeBias;
}
template <int W>
KILN_FN Vec<long, W> KDoubleToWhole(Vec<double, W> x) {
  return __builtin_bit_cast(Vec<long, W>, x + kWholeBias) - kWholeBits;
}

#ifdef __AVX512DQ__
// Any integers; b is neither 0 nor -1. The first quotient of the magnitudes is wrong by 2^12 at
// most, for it is rounded thrice, and so is what is left of the dividend, in units of b; the
// quotient of that is wrong by 1 at most. Arithmetic of vectors wraps on its way.
template <int W>
KILN_FN Vec<long, W> KTruncDivWide(Vec<long, W> a, Vec<long, W> b) {
  using Whole = Vec<unsigned long, W>;
  const Whole dividend = (Whole)(a < 0 ? -a : a), divisor = (Whole)(b < 0 ? -b : b);
  const Vec<double, W> by = __builtin_convertvector(divisor, Vec<double, W>);
  Whole q = __builtin_convertvector(__builtin_convertvector(dividend, Vec<double, W>) / by, Whole);
  Vec<long, W> left = (Vec<long, W>)(dividend - q * divisor);
  const Vec<long, W> more =
      __builtin_convertvector(__builtin_convertvector(left, Vec<double, W>) / by, Vec<long, W>);
  q += (Whole)more;
  left -= more * (Vec<long, W>)divisor;
  q += left < 0 ? (Whole)(~0ul) : (Whole)left >= divisor ? (Whole)(1ul) : (Whole)(0ul);
  return (a ^ b) < 0 ? -(Vec<long, W>)q : (Vec<long, W>)q;
}
#else
template <int W>
KILN_FN Vec<long, W> KTruncDivWide(Vec<long, W> a, Vec<long, W> b) {
  return KTruncDivEach(a, b);
}
#endif

template <int W>
KILN_FN Vec<long, W> KTruncDivLong(Vec<long, W> a, Vec<long, W> b) {
  const auto high = (Vec<unsigned long, W>)((a + (long)kWholeLimit) | (b + (long)kWholeLimit));
  if (__builtin_expect(__builtin_reduce_or(high) < 2 * kWholeLimit, 1)) {
    return KDoubleToWhole<W>(
        __builtin_elementwise_trunc(KWholeToDouble<W>(a) / KWholeToDouble<W>(b)));
  }
  return KTruncDivWide<W>(a, b);
}

#pragma float_control(pop)
#endif

// 0 where b is 0; the least number divided by -1 wraps.
template <class T, int W>
KILN_FN Vec<T, W> KTruncDiv(Vec<T, W> a, Vec<T, W> b) {
#ifdef __AVX__
  if constexpr (W > 1) {
    const Vec<T, W> zero = (Vec<T, W>)(T(0)), one = (Vec<T, W>)(T(1));
    if constexpr (T(-1) < T(0)) a = b == zero - one ? zero - a : a;
    Vec<T, W> by = b == zero ? one : b;
    if constexpr (T(-1) < T(0)) by = b == zero - one ? one : by;
    Vec<T, W> q;
    if constexpr (sizeof(T) == 8) {
      q = KTruncDivLong<W>(a, by);
    } else if constexpr (sizeof(T) == 4) {
      q = KTruncDivAs<double>(a, by);
    } else {
      q = KTruncDivAs<float>(a, by);
    }
    return b == zero ? zero : q;
  }
#endif
  return KTruncDivEach(a, b);
}
