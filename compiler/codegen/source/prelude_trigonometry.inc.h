// Goes on where prelude_math.inc.h ends, under its rules: sine, cosine and their kin.
// ---- Trigonometric functions ---------------------------------------------------------------

// The first 256 bits of 2 / pi.
static const unsigned kTwoOverPi[8] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0,
                                       0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561};

// x mod pi/2 in [-pi/4, pi/4] and the quadrant, for finite x >= 1 (Payne and Hanek 1983): of the
// product of the mantissa and 2/pi only the bits around the binary point are computed.
static inline double KReduceHuge(float x, int& quadrant) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  const unsigned long mantissa = (bits & 0x7fffff) | 0x800000;
  const int exponent = (int)(bits >> 23) - 150;      // x = mantissa * 2^exponent
  const int skip = exponent > 2 ? exponent - 2 : 0;  // bits of 2/pi that give multiples of 4
  const int word = skip / 32, shift = skip % 32;
  const unsigned* const from = kTwoOverPi + word;
  unsigned long high = (unsigned long)from[0] << 32 | from[1];
  unsigned long low = (unsigned long)from[2] << 32 | from[3];
  high = shift != 0 ? high << shift | low >> (64 - shift) : high;
  low <<= shift;
  const unsigned __int128 wide =
      (unsigned __int128)mantissa * high + (mantissa * (low >> 32) >> 32);
  // x * 2/pi modulo 4 in units of 2^-62.
  const unsigned long product = (unsigned long)(wide >> (exponent > 2 ? 0 : 2 - exponent));
  quadrant = (int)(product >> 62) + (int)(product >> 61 & 1);
  return (double)(long)(product << 2) * 0x1.921fb54442d18p-64;
}
template <class T, int W>
static inline __attribute__((noinline)) void KReduceHugeLanes(Vec<float, W> x, float limit,
                                                              Vec<T, W>& r, Vec<int, W>& q) {
  for (int i = 0; i < W; ++i) {
    if (!(x[i] > limit)) continue;
    int quadrant = 0;
    r[i] = x[i] < __builtin_inff() ? (T)KReduceHuge(x[i], quadrant) : (T)__builtin_nanf("");
    q[i] = quadrant;
  }
}
template <int W>
KILN_FN bool KAnyAbove(Vec<float, W> x, float limit) {
  return __builtin_reduce_or((Vec<int, W>)(x > limit)) != 0;
}
// x >= 0 modulo pi/2 in [-pi/4, pi/4]; q counts the multiples taken off. pi/2 stands in parts whose
// products with q are exact.
template <int W>
KILN_FN Vec<float, W> KReduceAngle(Vec<float, W> x, Vec<int, W>& q) {
  using F = Vec<float, W>;
  const F t = KMad(x, (F)(0x1.45f306p-1f), (F)(KILN_ROUNDER)), n = t - KILN_ROUNDER;
  q = KBits(t);
#ifdef __FMA__
  const float limit = 65536.0f;
  F r = KMad(n, (F)(-0x1.921fb6p+0f), x);
  r = KMad(n, (F)(0x1.777a5cp-25f), r);
  r = KMad(n, (F)(0x1.ee59dap-50f), r);
#else
  const float limit = 12000.0f;
  const F exact = (x - n * 0x1.92p+0f) - n * 0x1.fb4p-12f, third = n * 0x1.444p-24f;
  F r = exact - third;
  r += ((exact - r) - third) - n * 0x1.68c234p-39f;
#endif
  if (__builtin_expect(KAnyAbove(x, limit), 0)) KReduceHugeLanes<float, W>(x, limit, r, q);
  return r;
}
// sin of r + q pi/2, its sign flipped where the sign bit of `sign` is set.
template <int W>
KILN_FN Vec<float, W> KSinReduced(Vec<float, W> r, Vec<int, W> q, Vec<int, W> sign) {
  using F = Vec<float, W>;
  const F u = r * r;
  const F sine = KMad(u * r, KPoly(u, -0x1.555546p-3f, 0x1.110774p-7f, -0x1.9951f6p-13f), r);
  const F cosine = KPoly(u, 1.0f, -0.5f, 0x1.55554ap-5f, -0x1.6c0c28p-10f, 0x1.99e80cp-16f);
  const F result = (q & 1) != 0 ? cosine : sine;
  return (F)(KBits(result) ^ ((sign ^ (q << 30)) & (-0x7fffffff - 1)));
}
template <int W>
KILN_FN Vec<float, W> KSin(Vec<float, W> x) {
  Vec<int, W> q;
  const Vec<float, W> r = KReduceAngle(__builtin_elementwise_abs(x), q);
  return KSinReduced(r, q, KBits(x));
}
template <int W>
KILN_FN Vec<float, W> KCos(Vec<float, W> x) {
  Vec<int, W> q;
  const Vec<float, W> r = KReduceAngle(__builtin_elementwise_abs(x), q);
  return KSinReduced(r, q + 1, (Vec<int, W>)(0));
}
template <int W>
KILN_FN Vec<float, W> KTan(Vec<float, W> x) {
  using D = Vec<double, W>;
  const Vec<float, W> a = __builtin_elementwise_abs(x);
  const D d = KWiden(a);
  const D t = KMad(d, (D)(0x1.45f306dc9c883p-1), (D)(KILN_ROUNDER_DOUBLE));
  const D n = t - KILN_ROUNDER_DOUBLE;
  Vec<int, W> q = __builtin_convertvector(KBits(t), Vec<int, W>);
  D r = (d - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
  const float limit = 0x1p18f;
  if (__builtin_expect(KAnyAbove(a, limit), 0)) KReduceHugeLanes<double, W>(a, limit, r, q);
  const D u = r * r;
  const D sine = KMad(u * r,
                      KPoly(u, -0x1.55555555521b5p-3, 0x1.1111110c7dd15p-7, -0x1.a019f92c6af72p-13,
                            0x1.71d7661863d18p-19, -0x1.a95f107d7c7bdp-26),
                      r);
  const D cosine = KPoly(u, 1.0, -0.5, 0x1.5555555552d74p-5, -0x1.6c16c16716c15p-10,
                         0x1.a019fa54b4e41p-16, -0x1.27e006761f252p-22, 0x1.1bbcea54b4266p-29);
  const auto odd = __builtin_convertvector(q & 1, Vec<long, W>) != 0;
  const D result = (odd ? -cosine : sine) / (odd ? sine : cosine);
  return (Vec<float, W>)(KBits(KNarrow(result)) ^ (KBits(x) & (-0x7fffffff - 1)));
}
