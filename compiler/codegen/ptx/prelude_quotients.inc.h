// Goes on where prelude_math_double.inc.h ends: quotients and roots of float32 from the machine's
// approximations and a step of Newton's method by fused operations, within half a unit in the last
// place and 2^-20 of one (Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990). The machine's exact ones have a branch and a function for rare
// operands, which an assembler takes as long for as for a small kernel. Where the step makes no
// sense, at 0, infinities and NaN, the approximation is the result.
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off) reassociate(off) reciprocal(off)

// a / b, by about what 1 / b is.
template <int W>
KILN_FN Vec<float, W> KQuotientBy(Vec<float, W> inverse, Vec<float, W> a, Vec<float, W> b) {
  const Vec<float, W> q = a * inverse, rest = KFma(-b, q, a);
  const Vec<float, W> better = KFma(rest, inverse, q);
  return __builtin_elementwise_abs(rest) < __builtin_elementwise_abs(a) ? better : q;
}
// Of constants |b| in [2^-60, 2^60]: exact where neither the result nor a's remainder is subnormal.
template <int W>
KILN_FN Vec<float, W> KOverCount(Vec<float, W> a, Vec<float, W> b) {
  return KQuotientBy(1.0f / b, a, b);
}
// Of |b| in [1, inf], or 0: above 2^126 it may be 0.
template <int W>
KILN_FN Vec<float, W> KOverOne(Vec<float, W> a, Vec<float, W> b) {
  return KQuotientBy(KFastInverse(b), a, b);
}
template <int W, int... I>
KILN_FN Vec<float, W> KMachineReciprocalEach(Vec<float, W> x, KNumbers<int, I...>) {
  return {KMachineReciprocal(x[I])...};
}
// 1 / x; the first operand is 1.
template <int W>
KILN_FN Vec<float, W> KOneOver(Vec<float, W> one, Vec<float, W> x) {
  const Vec<float, W> y = KMachineReciprocalEach(x, KLanes<W>());
  const Vec<float, W> error = KFma(-x, y, one);
  return __builtin_elementwise_abs(error) < 1.0f ? KFma(y, error, y) : y;
}
template <int W, int... I>
KILN_FN Vec<float, W> KMachineRsqrtEach(Vec<float, W> x, KNumbers<int, I...>) {
  return {KMachineRsqrt(x[I])...};
}
template <int W>
KILN_FN Vec<float, W> KOneOverRoot(Vec<float, W> x) {
  const Vec<float, W> y = KMachineRsqrtEach(x, KLanes<W>());
  const Vec<float, W> root = x * y, rest = KFma(x, y, -root);
  const Vec<float, W> error = KFma(-rest, y, KFma(-root, y, (Vec<float, W>)(1.0f)));
  return __builtin_elementwise_abs(error) < 1.0f ? KFma(0.5f * y, error, y) : y;
}
#pragma float_control(pop)
