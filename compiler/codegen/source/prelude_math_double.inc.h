// Goes on where prelude_trigonometry.inc.h ends: functions of Vec<float, W> that compute in double,
// functions of Vec<double, W>, and the end of the exact floating-point rules that
// prelude_math.inc.h began.
// ---- Functions computed in double ----------------------------------------------------------

// 2^x, x cut to [-1000, 1000]: what lies outside is 0 or infinite as a float.
template <int W>
KILN_FN Vec<double, W> KDoubleExp2(Vec<double, W> x) {
  x = KClamp(x, -1000.0, 1000.0);
  const Vec<double, W> t = x + KILN_ROUNDER_DOUBLE;
  const Vec<double, W> p = KPoly(
      x - (t - KILN_ROUNDER_DOUBLE), 1.0, 0x1.62e42fefa3a29p-1, 0x1.ebfbdff82c622p-3,
      0x1.c6b08d70390f4p-5, 0x1.3b2ab6fb817aap-7, 0x1.5d87fea532193p-10, 0x1.430913897b34ep-13,
      0x1.ffcb3d8de086fp-17, 0x1.62be64eeccc1ap-20, 0x1.b68b2a3b4a154p-24, 0x1.e8bb3109e1955p-28);
  return (Vec<double, W>)(KBits(p) + (KBits(t) << 52));
}
template <int W>
KILN_FN Vec<double, W> KDoubleExp(Vec<double, W> x) {
  return KDoubleExp2(x * 0x1.71547652b82fep+0);
}
// 2 artanh(s) + e ln 2 with s = (m - 1) / (m + 1), m in [2/3, 4/3); x is no subnormal double.
template <int W>
KILN_FN Vec<double, W> KDoubleLog(Vec<double, W> x) {
  using D = Vec<double, W>;
  const Vec<long, W> k = (KBits(x) - 0x3fe5555555555555) >> 52;
  const D m = (D)(KBits(x) - (k << 52));
  const D e = (D)(k + KBits((D)(KILN_ROUNDER_DOUBLE))) - KILN_ROUNDER_DOUBLE;
  const D s = (m - 1.0) / (m + 1.0), u = s * s;
  const D tail =
      KPoly(u, 0x1.5555555555774p-1, 0x1.99999998f1338p-2, 0x1.249249b1ddf5fp-2,
            0x1.c71c018a58701p-3, 0x1.7474dd672548ep-3, 0x1.385334f88ce26p-3, 0x1.3abba126e0516p-3);
  return KLogSpecial(x, e * 0x1.62e42fefa39efp-1 + (2.0 * s + u * s * tail));
}
// The angle of (x, y), signed zeros and infinities as C's atan2 has them.
template <int W>
KILN_FN Vec<double, W> KDoubleAtan2(Vec<double, W> y, Vec<double, W> x) {
  using D = Vec<double, W>;
  const D a = __builtin_elementwise_abs(y), b = __builtin_elementwise_abs(x);
  const auto steep = a > b;
  const D low = steep ? b : a, high = steep ? a : b;
  D t = a == b ? (D)(1.0) : low / high;
  t = high == 0.0 ? low : t;
  const D u = t * t;
  const D tail = KPoly(u, -0x1.5555552f299a2p-2, 0x1.9999846d046ebp-3, -0x1.2490392f28b76p-3,
                       0x1.c6e85bcb179e8p-4, -0x1.72d635c9446afp-4, 0x1.33a180e36ea03p-4,
                       -0x1.f02ffd674820cp-5, 0x1.69eaf5356a470p-5, -0x1.b2f6dfc5080e7p-6,
                       0x1.81f856e14aa09p-7, -0x1.b405623a207b4p-9, 0x1.ce1dbe261d69bp-12);
  D angle = KMad(u * t, tail, t);
  angle = steep ? 0x1.921fb54442d18p+0 - angle : angle;
  angle = KBits(x) < 0 ? 0x1.921fb54442d18p+1 - angle : angle;
  return __builtin_elementwise_copysign(angle, y);
}
template <int W>
KILN_FN Vec<float, W> KAtan2(Vec<float, W> y, Vec<float, W> x) {
  return KNarrow(KDoubleAtan2(KWiden(y), KWiden(x)));
}
template <int W>
KILN_FN Vec<float, W> KAtan(Vec<float, W> x) {
  return KNarrow(KDoubleAtan2(KWiden(x), (Vec<double, W>)(1.0)));
}
template <int W>
KILN_FN Vec<float, W> KAsin(Vec<float, W> x) {
  const Vec<double, W> d = KWiden(x);
  return KNarrow(KDoubleAtan2(d, __builtin_elementwise_sqrt((1.0 - d) * (1.0 + d))));
}
template <int W>
KILN_FN Vec<float, W> KAcos(Vec<float, W> x) {
  const Vec<double, W> d = KWiden(x);
  return KNarrow(KDoubleAtan2(__builtin_elementwise_sqrt((1.0 - d) * (1.0 + d)), d));
}
template <int W>
KILN_FN Vec<float, W> KSinh(Vec<float, W> x) {
  using D = Vec<double, W>;
  const D d = KWiden(x), a = __builtin_elementwise_abs(d), u = d * d;
  const D small = KMad(u * a,
                       KPoly(u, 0x1.5555555576fa8p-3, 0x1.111110f2c995fp-7, 0x1.a01a24db25c1cp-13,
                             0x1.71cc66b54fee6p-19, 0x1.b68d7261256dbp-26),
                       a);
  const D e = KDoubleExp(a);
  const D large = 0.5 * (e - 1.0 / e);
  return KNarrow(__builtin_elementwise_copysign(a < 1.0 ? small : large, d));
}
template <int W>
KILN_FN Vec<float, W> KCosh(Vec<float, W> x) {
  const Vec<double, W> e = KDoubleExp(__builtin_elementwise_abs(KWiden(x)));
  return KNarrow(0.5 * (e + 1.0 / e));
}
// The inverse hyperbolic functions lose digits of log(1 + tiny): below 2^-12 two terms of the
// series serve.
template <int W>
KILN_FN Vec<float, W> KAsinh(Vec<float, W> x) {
  using D = Vec<double, W>;
  const D d = KWiden(x), a = __builtin_elementwise_abs(d), u = d * d;
  const D large = KDoubleLog(a + __builtin_elementwise_sqrt(u + 1.0));
  const D small = a - a * u * (1.0 / 6.0);
  return KNarrow(__builtin_elementwise_copysign(a < 0x1p-12 ? small : large, d));
}
template <int W>
KILN_FN Vec<float, W> KAcosh(Vec<float, W> x) {
  using D = Vec<double, W>;
  const D d = KWiden(x), root = __builtin_elementwise_sqrt(d * d - 1.0);
  return KNarrow(KDoubleLog(d < 1.0 ? (D)(__builtin_nan("")) : d + root));
}
template <int W>
KILN_FN Vec<float, W> KAtanh(Vec<float, W> x) {
  using D = Vec<double, W>;
  const D d = KWiden(x), a = __builtin_elementwise_abs(d);
  const D large = 0.5 * KDoubleLog((1.0 + a) / (1.0 - a));
  const D small = a + a * a * a * (1.0 / 3.0);
  return KNarrow(__builtin_elementwise_copysign(a < 0x1p-12 ? small : large, d));
}
// e^(-x^2) times the scaled function, which is a polynomial of (|x| - 2) / (|x| + 2).
template <int W>
KILN_FN Vec<float, W> KErfc(Vec<float, W> x) {
  using D = Vec<double, W>;
  const D d = KWiden(x), whole = __builtin_elementwise_abs(d);
  const D a = (D)(10.2) < whole ? (D)(10.2) : whole;
  const D scaled = KPoly(
      (a - 2.0) / (a + 2.0), 0x1.058671b537d3ap-2, -0x1.b57034eff434ap-2, 0x1.eeea7db9cd657p-3,
      -0x1.437f0b3518163p-4, 0x1.e9477b252f3f5p-9, 0x1.ca95adbdc220dp-8, -0x1.bc366b4de019dp-11,
      -0x1.01645d9f76519p-10, 0x1.72eb96db856d7p-15, 0x1.6d0d0c94331a0p-13, 0x1.ad9f6ac19ebf5p-16,
      -0x1.cc2b0955000eep-16, -0x1.6f72d0243630bp-17, 0x1.1b83b85903410p-19, 0x1.98303f05a1fbep-20);
  const D tail = scaled * KDoubleExp(-a * a);
  return KNarrow(d < 0.0 ? 2.0 - tail : tail);
}
// 2^(y log2|x|), with C's rules for special values.
template <int W>
KILN_FN Vec<float, W> KPow(Vec<float, W> x, Vec<float, W> y) {
  using F = Vec<float, W>;
  using I = Vec<int, W>;
  const F a = __builtin_elementwise_abs(x), b = __builtin_elementwise_abs(y);
  const Vec<double, W> log2 = KDoubleLog(KWiden(a)) * 0x1.71547652b82fep+0;
  F result = KNarrow(KDoubleExp2(KWiden(y) * log2));
  result = ((a == 1.0f) & (b == b)) ? (F)(1.0f) : result;  // also for an infinite y
  // From 2^24 on every float is an even integer.
  const auto small = b < 0x1p24f;
  const I whole = __builtin_convertvector(small ? y : (F)(0.0f), I);
  const auto integer = ~small | (__builtin_convertvector(whole, F) == y);
  result = (F)(KBits(result) ^ (integer ? KBits(x) & (whole << 31) : (I)(0)));
  const auto undefined = (x < 0.0f) & (a < __builtin_inff()) & ~integer;
  result = undefined ? (F)(__builtin_nanf("")) : result;
  return ((x == 1.0f) | (y == 0.0f)) ? (F)(1.0f) : result;
}

// ---- Double precision: lane by lane through the C library of the process ----------------------

#define KILN_LIBM(NAME, FUNCTION)                      \
  extern "C" double FUNCTION(double);                  \
  template <int W>                                     \
  KILN_FN Vec<double, W> NAME(Vec<double, W> x) {      \
    Vec<double, W> y;                                  \
    for (int i = 0; i < W; ++i) y[i] = FUNCTION(x[i]); \
    return y;                                          \
  }
// clang-format off
KILN_LIBM(KExp, exp) KILN_LIBM(KExp2, exp2) KILN_LIBM(KExpm1, expm1) KILN_LIBM(KLog, log)
KILN_LIBM(KLog2, log2) KILN_LIBM(KLog10, log10) KILN_LIBM(KLog1p, log1p) KILN_LIBM(KSin, sin)
KILN_LIBM(KCos, cos) KILN_LIBM(KTan, tan) KILN_LIBM(KAsin, asin) KILN_LIBM(KAcos, acos)
KILN_LIBM(KAtan, atan) KILN_LIBM(KSinh, sinh) KILN_LIBM(KCosh, cosh) KILN_LIBM(KTanh, tanh)
KILN_LIBM(KAsinh, asinh) KILN_LIBM(KAcosh, acosh) KILN_LIBM(KAtanh, atanh) KILN_LIBM(KErf, erf)
KILN_LIBM(KErfc, erfc)
// clang-format on
#undef KILN_LIBM
                        extern "C" double pow(double, double);
extern "C" double atan2(double, double);
template <int W>
KILN_FN Vec<double, W> KPow(Vec<double, W> x, Vec<double, W> y) {
  Vec<double, W> z;
  for (int i = 0; i < W; ++i) z[i] = pow(x[i], y[i]);
  return z;
}
template <int W>
KILN_FN Vec<double, W> KAtan2(Vec<double, W> y, Vec<double, W> x) {
  Vec<double, W> z;
  for (int i = 0; i < W; ++i) z[i] = atan2(y[i], x[i]);
  return z;
}
template <int W>
KILN_FN Vec<double, W> KSigmoid(Vec<double, W> x) {
  using D = Vec<double, W>;
  const D z = KExp(-__builtin_elementwise_abs(x));
  return (x < 0.0 ? z : (D)(1.0)) / (z + 1.0);
}
// log(exp(a) + exp(b)); of equal infinities that infinity.
struct KLogAddExpOf {
  template <class T, int W>
  KILN_INLINE Vec<T, W> operator()(Vec<T, W> a, Vec<T, W> b) const {
    const Vec<T, W> greater = KMax(a, b);
    const Vec<T, W> sum = greater + KLog1p(KExp(KMin(a, b) - greater));
    return a == b && __builtin_elementwise_abs(a) == (Vec<T, W>)((T)__builtin_inf()) ? a : sum;
  }
};
#undef KILN_ROUNDER
#undef KILN_ROUNDER_DOUBLE
#pragma float_control(pop)
