// Goes on where prelude_math_double.inc.h ends: functions for results of 16 bits, within 2^-17 of
// the value, or 2^-22 of 1 where that is more.

template <int W>
KILN_FN Vec<float, W> KShortExp(Vec<float, W> x) {
  return KFastExp2(x * 0x1.715476p+0f);
}
template <int W>
KILN_FN Vec<float, W> KShortTanh(Vec<float, W> x) {
  const Vec<float, W> e = KFastExp2(x * 0x1.715476p+1f);
  const Vec<float, W> large =
      KMad(KFastInverse(e + 1.0f), (Vec<float, W>)(-2.0f), (Vec<float, W>)(1.0f));
  return __builtin_elementwise_abs(x) < 0x1p-6f ? x : large;
}
template <int W>
KILN_FN Vec<float, W> KShortSigmoid(Vec<float, W> x) {
  return KFastInverse(KFastExp2(x * -0x1.715476p+0f) + 1.0f);
}
// Abramowitz and Stegun, 7.1.26.
template <int W>
KILN_FN Vec<float, W> KShortErf(Vec<float, W> x) {
  using F = Vec<float, W>;
  const F a = __builtin_elementwise_abs(x);
  const F t = KFastInverse(KMad(a, (F)(0.3275911f), (F)(1.0f)));
  const F p = KPoly(t, 0.254829592f, -0.284496736f, 1.421413741f, -1.453152027f, 1.061405429f) * t;
  const F large = KMad(-p, KFastExp2(x * x * -0x1.715476p+0f), (F)(1.0f));
  const F of_size = a < 0x1p-6f ? a * 1.1283792f : large;
  return KWithSign(of_size, x);
}
// a / b, b in [1, inf]: what it is less than 2^-126 of `a` may be 0.
template <int W>
KILN_FN Vec<float, W> KShortOver(Vec<float, W> a, Vec<float, W> b) {
  return a * KFastInverse(b);
}
// Of constants b.
template <int W>
KILN_FN Vec<float, W> KShortOverCount(Vec<float, W> a, Vec<float, W> b) {
  return a * (1.0f / b);
}
template <int W>
KILN_FN Vec<float, W> KShortQuotient(Vec<float, W> a, Vec<float, W> b) {
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) {
    a[i] = KMachineQuotient(a[i], b[i]);
  }
  return a;
}
