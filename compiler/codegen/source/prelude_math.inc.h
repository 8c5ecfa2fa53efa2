// Part of every generated kernel: elementary functions of Vec<float, W> as straight-line polynomial
// code within 2 units in the last place for every float32 input, with or without fused
// multiply-add; tests/tools/math_accuracy.cc checks it. No library is called but for double.
// The method throughout: bring the argument into a small interval (Cody and Waite 1980: constants
// split so that products are exact), a minimax polynomial there (Remez's exchange algorithm;
// tests/tools/fit_math_polynomials.py prints all coefficients), and scaling back. Functions
// that are rarely hot compute in double and round once: prelude_math_double.inc.h, which has to
// follow.
#pragma float_control(push)
#pragma float_control(precise, on)
#pragma clang fp contract(off) reassociate(off) reciprocal(off)

// ---- Building blocks -----------------------------------------------------------------------

// a * b + c, rounded once where the CPU can and twice where it cannot: callers work with either.
template <class V>
KILN_FN V KMad(V a, V b, V c) {
#if defined(__FMA__) || defined(__NVPTX__)
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}
// c0 + x * (c1 + x * (...)).
template <class V, class T>
KILN_FN V KPoly(V x, T c0) {
  return (V)(c0);
}
template <class V, class T, class... Rest>
KILN_FN V KPoly(V x, T c0, Rest... rest) {
  return KMad(KPoly(x, rest...), x, (V)(c0));
}
template <int W>
KILN_FN Vec<int, W> KBits(Vec<float, W> x) {
  return (Vec<int, W>)x;
}
template <int W>
KILN_FN Vec<long, W> KBits(Vec<double, W> x) {
  return (Vec<long, W>)x;
}
template <int W>
KILN_FN Vec<double, W> KWiden(Vec<float, W> x) {
  return __builtin_convertvector(x, Vec<double, W>);
}
template <int W>
KILN_FN Vec<float, W> KNarrow(Vec<double, W> x) {
  return __builtin_convertvector(x, Vec<float, W>);
}
// x within [low, high]; NaN stays.
template <class V, class T>
KILN_FN V KClamp(V x, T low, T high) {
  x = (V)(low) > x ? (V)(low) : x;
  return (V)(high) < x ? (V)(high) : x;
}
// Adding it leaves the nearest integer in the low bits of the sum.
#define KILN_ROUNDER 0x1.8p23f
#define KILN_ROUNDER_DOUBLE 0x1.8p52

// The integer that n is, |n| < 2^22; some integer for a NaN, which a conversion leaves undefined.
template <int W>
KILN_FN Vec<int, W> KWhole(Vec<float, W> n) {
  return KBits(n + KILN_ROUNDER) - KBits((Vec<float, W>)(KILN_ROUNDER));
}
// x * 2^n for a whole n in [-252, 254], rounded once even where the result is subnormal.
template <int W>
KILN_FN Vec<float, W> KScale(Vec<float, W> x, Vec<float, W> n) {
#ifdef __AVX512F__
  if constexpr (W == 16) {
    return (Vec<float, W>)__builtin_ia32_scalefps512_mask(x, n, x, 0xffff, 4);
  }
#endif
  const Vec<int, W> whole = KWhole(n), half = whole >> 1;
  return x * (Vec<float, W>)((half + 127) << 23) * (Vec<float, W>)((whole - half + 127) << 23);
}

// ---- Exponentials --------------------------------------------------------------------------

// 2^x and 1 / x where a GPU's approximations will do: for results that are no subnormals.
#ifdef KILN_ON_GPU
template <int W, int... I>
KILN_FN Vec<float, W> KFastExp2Each(Vec<float, W> x, KNumbers<int, I...>) {
  return {KMachineExp2(x[I])...};
}
template <int W>
KILN_FN Vec<float, W> KFastExp2(Vec<float, W> x) {
  return KFastExp2Each(x, KLanes<W>());
}
template <int W, int... I>
KILN_FN Vec<float, W> KFastInverseEach(Vec<float, W> x, KNumbers<int, I...>) {
  return {KMachineInverse(x[I])...};
}
template <int W>
KILN_FN Vec<float, W> KFastInverse(Vec<float, W> x) {
  return KFastInverseEach(x, KLanes<W>());
}
#endif
// a / b for b in [1, inf].
template <int W>
KILN_FN Vec<float, W> KOver(Vec<float, W> a, Vec<float, W> b) {
#ifdef KILN_ON_GPU
  return a * KFastInverse(b);
#else
  return a / b;
#endif
}

// p of e^x = 2^n (1 + p), |p| < 0.42: the argument reduced by n ln 2, whose high part has 15 bits.
template <int W>
KILN_FN Vec<float, W> KExpReduced(Vec<float, W> x, Vec<float, W>& n) {
  using F = Vec<float, W>;
  n = KMad(x, (F)(0x1.715476p+0f), (F)(KILN_ROUNDER)) - KILN_ROUNDER;
  const F r = KMad(n, (F)(-0x1.7f7d1cp-20f), KMad(n, (F)(-0x1.62e4p-1f), x));
  const F tail =
      KPoly(r, 0x1.fffffcp-2f, 0x1.55548cp-3f, 0x1.5558b8p-5f, 0x1.123e58p-7f, 0x1.6a4dacp-10f);
  return KMad(r * r, tail, r);
}
// 2^r for |r| <= 1/2.
template <int W>
KILN_FN Vec<float, W> KExp2Small(Vec<float, W> r) {
#ifdef KILN_ON_GPU
  return KFastExp2(r);
#endif
  return KPoly(r, 1.0f, 0x1.62e43p-1f, 0x1.ebfbdcp-3f, 0x1.c6af7ap-5f, 0x1.3b2dep-7f,
               0x1.5f09a6p-10f, 0x1.416d08p-13f);
}
template <int W>
KILN_FN Vec<float, W> KExp(Vec<float, W> x) {
#ifdef KILN_ON_GPU
  // 2^n 2^r with a normal 2^n, n from -126 to 126, and whatever is left for r.
  using F = Vec<float, W>;
  constexpr float kRounder = 0x1.8p+23f + 127;  // whose last bits are those of 2^n's exponent
  F share;
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) share[i] = KMachineShare(x[i], 0x1.715476p+0f / 252, 0.5f);
  const F t = KMad(share, (F)(252.0f), (F)(kRounder - 126)), n = t - kRounder;
  const F r = KMad(x, (F)(0x1.4ae0cp-26f), KMad(x, (F)(0x1.715476p+0f), -n));
  return KFastExp2(r) * (F)((Vec<int, W>)t << 23);
#else
  Vec<float, W> n;
  const Vec<float, W> p = KExpReduced(KClamp(x, -104.0f, 89.0f), n);
  return KScale(p + 1.0f, n);
#endif
}
template <int W>
KILN_FN Vec<float, W> KExp2(Vec<float, W> x) {
  x = KClamp(x, -151.0f, 129.0f);
  const Vec<float, W> n = (x + KILN_ROUNDER) - KILN_ROUNDER;
  return KScale(KExp2Small(x - n), n);
}
// 2^n (p + (1 - 2^-n)), where 1 - 2^-n is exact or does not matter.
template <int W>
KILN_FN Vec<float, W> KExpm1(Vec<float, W> x) {
  using F = Vec<float, W>;
  F n;
  const F p = KExpReduced(KClamp(x, -18.0f, 89.0f), n);
  Vec<int, W> exponent = 127 - KWhole(n);
  exponent = exponent < 0 ? 0 : exponent;
  const F result = KScale(p + (1.0f - (F)(exponent << 23)), n);
  return __builtin_elementwise_abs(x) < 0x1p-25f ? x : result;
}
// With z = e^-|x|, which does not overflow, and q = z / (1 + z): 1 - q, or z - z q, where the
// rounding of 1 + z counts less than in q.
template <int W>
KILN_FN Vec<float, W> KSigmoid(Vec<float, W> x) {
  using F = Vec<float, W>;
  const F z = KExp(-__builtin_elementwise_abs(x));
  const F one_or_z = x < 0.0f ? z : (F)(1.0f);
  return KMad(one_or_z, KOver(-z, z + 1.0f), one_or_z);
}
#ifdef __AVX512F__
// An odd function as one polynomial for each of 32 centres 0, step, ...: row k of the table holds
// the coefficients of t^k, which stay in registers. The first polynomial lacks a term t, added
// apart to keep the digits of a slope near 1. Beyond `limit`, which rounds to the last centre, |x|
// counts as `limit`.
template <int kRows>
KILN_FN Vec<float, 16> KOddFromTable(const float (&table)[kRows][32], float step, float limit,
                                     Vec<float, 16> x) {
  using F = Vec<float, 16>;
  F a = __builtin_elementwise_abs(x);
  a = (F)(limit) < a ? (F)(limit) : a;
  const F shifted = KMad(a, (F)(1.0f / step), (F)(KILN_ROUNDER));
  const F t = KMad(shifted - KILN_ROUNDER, (F)(-step), a);
  F y = {};
#pragma clang loop unroll(full)
  for (int k = kRows - 1; k >= 0; --k) {
    // Heeds the low 5 bits of each index.
    const F c = __builtin_ia32_vpermi2varps512(KLoadAll<16>(table[k]), KBits(shifted),
                                               KLoadAll<16>(table[k] + 16));
    const F base = k > 0 ? c : shifted == KILN_ROUNDER ? t : c;
    y = k == kRows - 1 ? c : KMad(y, t, base);
  }
  return __builtin_elementwise_copysign(y, x);
}
alignas(64) static const float kErfTable[6][32] = {
    {0.0f,         0.140316203f, 0.276326388f, 0.404116899f, 0.520499885f, 0.623240888f,
     0.711155653f, 0.784075081f, 0.842700779f, 0.888388216f, 0.92290014f,  0.948170066f,
     0.966105163f, 0.978443742f, 0.986671686f, 0.99199003f,  0.995322287f, 0.997345984f,
     0.998537302f, 0.999217033f, 0.999593019f, 0.999794602f, 0.999899387f, 0.999952137f,
     0.999977887f, 0.999990106f, 0.999995708f, 0.999998212f, 0.999999285f, 0.999999702f,
     0.999999881f, 1.0f},
    {0.128379166f,    1.11088526f,     1.06001413f,     0.980352759f,
     0.87878257f,     0.763499558f,    0.642931104f,    0.524745047f,
     0.415107489f,    0.318273962f,    0.236521125f,    0.170359775f,
     0.118930288f,    0.0804722607f,   0.0527749956f,   0.0335458256f,
     0.0206669867f,   0.0123408204f,   0.00714231934f,  0.00400647754f,
     0.00217828411f,  0.0011478751f,   0.000586277281f, 0.000290228287f,
     0.000139253054f, 6.47586858e-05f, 2.91890265e-05f, 1.27517415e-05f,
     5.39942675e-06f, 2.21592018e-06f, 8.814323e-07f,   0.0f},
    {0.0f,
     -0.13885729f,
     -0.264999062f,
     -0.367610157f,
     -0.439405739f,
     -0.477198988f,
     -0.482237577f,
     -0.459193259f,
     -0.415079951f,
     -0.358027279f,
     -0.295676142f,
     -0.234230757f,
     -0.178429529f,
     -0.130785018f,
     -0.0923868567f,
     -0.0628415495f,
     -0.0413790457f,
     -0.0262514856f,
     -0.0161082018f,
     -0.00945734978f,
     -0.00538747106f,
     -0.00296847615f,
     -0.00163121196f,
     -0.0008186872f,
     -0.000371120404f,
     -0.00020719615f,
     -0.000117835509f,
     -9.84862709e-05f,
     -7.5778873e-05f,
     -2.14248053e-06f,
     7.89436854e-06f,
     0.0f},
    {-0.376124203f,   -0.358701944f,   -0.309160262f,   -0.234804466f,
     -0.146473035f,   -0.0556981601f,  0.0267398879f,   0.0929047391f,
     0.138384297f,    0.162456885f,    0.167529985f,    0.157937974f,
     0.138750613f,    0.114838466f,    0.090156585f,    0.067444481f,
     0.0482213683f,   0.0330373757f,   0.0217241403f,   0.0137309264f,
     0.00835026056f,  0.00489047589f,  0.00276035047f,  0.00150253181f,
     0.000789100246f, 0.00040001559f,  0.000195807152f, 9.25812201e-05f,
     4.22948833e-05f, 1.86735942e-05f, 7.96941458e-06f, 0.0f},
    {0.0f,           0.0677576587f,   0.125684321f,    0.160728604f,
     0.186573893f,   0.179303437f,    0.160609722f,    0.12291792f,
     0.0621690154f,  0.0201376043f,   0.000244542549f, -0.033974953f,
     -0.0358163677f, -0.0451661907f,  -0.0402487665f,  -0.056776911f,
     -0.0229312666f, -0.0194072928f,  -0.00938927382f, -0.0279741995f,
     -0.0235143676f, -0.0168435834f,  0.00157731038f,  -0.00590268942f,
     -0.0129642077f, 0.000673588715f, 0.00558189349f,  0.0140256602f,
     0.014465929f,   -0.00153636897f, -0.00287562446f, 0.0f},
    {0.112173446f,    0.098260276f,    0.0768405497f,   0.0287156329f,
     0.0110809999f,   -0.0216126312f,  -0.0418056771f,  -0.061519511f,
     -0.0728499442f,  -0.0630132928f,  -0.0456270427f,  -0.0308911391f,
     -0.0142837716f,  -0.0016732954f,  0.00685985805f,  0.0106982496f,
     0.0134258373f,   0.0125235394f,   0.0107484711f,   0.00827122573f,
     0.006079718f,    0.0042081424f,   0.00276621757f,  0.00171591376f,
     0.00101773208f,  0.000578905689f, 0.000315061014f, 0.000164595651f,
     8.25146999e-05f, 3.97607328e-05f, 1.84773744e-05f, 0.0f}};
alignas(64) static const float kTanhTable[7][32] = {
    {0.0f,         0.279472113f, 0.518450797f, 0.696941316f, 0.817235768f, 0.892797709f,
     0.938182056f, 0.96471107f,  0.979972839f, 0.988672256f, 0.993605018f, 0.996393681f,
     0.997967541f, 0.998854935f, 0.999354959f, 0.99963671f,  0.999795377f, 0.999884784f,
     0.999935091f, 0.999963462f, 0.999979436f, 0.999988437f, 0.999993503f, 0.999996305f,
     0.999997914f, 0.999998808f, 0.999999344f, 0.999999642f, 0.999999821f, 0.999999881f,
     0.99999994f,  1.0f},
    {-1.45497454e-08f, 0.921895325f,    0.731208742f,    0.514272809f,
     0.332125634f,     0.202912226f,    0.119814374f,    0.0693325475f,
     0.0396531969f,    0.0225271434f,   0.0127490517f,   0.00719965994f,
     0.00406084536f,   0.00228887517f,  0.00128961285f,  0.00072644325f,
     0.000409157568f,  0.000230435486f, 0.000129775042f, 7.3084193e-05f,
     4.11576293e-05f,  2.31779086e-05f, 1.30525814e-05f, 7.35051208e-06f,
     4.13940825e-06f,  2.33108767e-06f, 1.31274021e-06f, 7.3926293e-07f,
     4.16312076e-07f,  2.34443931e-07f, 1.32025875e-07f, 0.0f},
    {0.0f,
     -0.257640481f,
     -0.379086673f,
     -0.35841164f,
     -0.271402836f,
     -0.181151569f,
     -0.112384319f,
     -0.0668831691f,
     -0.0388421863f,
     -0.0222606063f,
     -0.0126601607f,
     -0.00718535436f,
     -0.00407810556f,
     -0.00231092959f,
     -0.00126522803f,
     -0.000723825709f,
     -0.000389009656f,
     -0.000237903048f,
     -0.000112493508f,
     -7.75392691e-05f,
     -5.45922485e-05f,
     -4.55809568e-05f,
     -3.86660504e-05f,
     1.02665354e-05f,
     1.01947799e-05f,
     2.07937373e-05f,
     -1.93924666e-06f,
     -1.11949821e-05f,
     -2.59746175e-05f,
     1.49661355e-06f,
     -5.71392729e-06f,
     0.0f},
    {-0.333320588f,   -0.235286847f,   -0.0471880883f,  0.078368336f,
     0.111119218f,    0.0941047743f,   0.0655235425f,   0.0414142422f,
     0.0248629618f,   0.0145106371f,   0.0083368998f,   0.00474793511f,
     0.00269069267f,  0.00152065698f,  0.000858067651f, 0.000483763724f,
     0.00027260129f,  0.000153570305f, 8.65000693e-05f, 4.87175785e-05f,
     2.74368504e-05f, 1.54512181e-05f, 8.70144777e-06f, 4.90028788e-06f,
     2.7595845e-06f,  1.55406258e-06f, 8.75167359e-07f, 4.92829543e-07f,
     2.77526169e-07f, 1.56289516e-07f, 8.80094007e-08f, 0.0f},
    {0.0f,
     0.151239723f,
     0.149787426f,
     0.0640658066f,
     -0.00312352553f,
     -0.0246517938f,
     -0.0270070005f,
     -0.0180060137f,
     -0.0135923615f,
     -0.00838991906f,
     -0.00501230452f,
     -0.000832124206f,
     0.00196438981f,
     0.00243375031f,
     -0.00347340247f,
     -0.000545863237f,
     -0.00273053115f,
     0.000892297656f,
     -0.00227678823f,
     0.000552066485f,
     0.00172359438f,
     0.00288920035f,
     0.00330768409f,
     -0.00228046998f,
     -0.00185490237f,
     -0.00299099926f,
     8.05747623e-05f,
     0.0013517607f,
     0.00330475206f,
     -0.000223917552f,
     0.000721739954f,
     0.0f},
    {0.131680071f,    0.0560119711f,   -0.0460067391f,  -0.0595590845f,
     -0.0299889743f,  -0.00601592707f, 0.00313881249f,  0.0047800052f,
     0.0037802353f,   0.00250888779f,  0.00153861428f,  0.000910151866f,
     0.000527817698f, 0.000301345804f, 0.000171059815f, 9.66840016e-05f,
     5.46149822e-05f, 3.07444534e-05f, 1.73138087e-05f, 9.75446983e-06f,
     5.49246579e-06f, 3.10330188e-06f, 1.74773572e-06f, 9.82018719e-07f,
     5.53192081e-07f, 3.11078708e-07f, 1.75046097e-07f, 9.923005e-08f,
     5.62067974e-08f, 3.15683195e-08f, 1.79415824e-08f, 0.0f},
    {0.0f,           -0.0601561554f, -0.00431558117f, 0.0364614464f,
     0.10643962f,    0.0418230668f,  0.0990434587f,   0.0110050505f,
     0.0697289184f,  0.0467850603f,  0.0302968919f,   -0.0490341969f,
     -0.106841713f,  -0.103278399f,  0.0984281749f,   0.00980972499f,
     0.0838811472f,  -0.0313488916f, 0.0722251832f,   -0.0186446048f,
     -0.0561863557f, -0.0936872214f, -0.107111529f,   0.0736707076f,
     0.0599426664f,  0.0967036262f,  -0.00261998852f, -0.0437239185f,
     -0.106880128f,  0.00723895198f, -0.0233424865f,  0.0f}};
#endif
// A number that is not negative, with the sign of `x`.
template <int W>
KILN_FN Vec<float, W> KWithSign(Vec<float, W> size, Vec<float, W> x) {
  return (Vec<float, W>)(KBits(size) | (KBits(x) & (int)0x80000000));
}
// By the table; else below 0.625 an odd polynomial, above it 1 - 2 / (e^2|x| + 1).
template <int W>
KILN_FN Vec<float, W> KTanh(Vec<float, W> x) {
#ifdef __AVX512F__
  if constexpr (W == 16) return KOddFromTable(kTanhTable, 147 / 512.0f, 9.03f, x);
#endif
  using F = Vec<float, W>;
  const F a = __builtin_elementwise_abs(x), u = x * x;
  const F tail =
      KPoly(u, -0x1.555532p-2f, 0x1.1106f8p-3f, -0x1.b83634p-5f, 0x1.51fe46p-6f, -0x1.752c6ep-8f);
  const F small = KMad(u * a, tail, a);
#ifdef KILN_ON_GPU
  const F e = KFastExp2(a * 0x1.715476p+1f);
#else
  const F doubled = a + a;
  F n;
  F e = KExpReduced((F)(20.0f) < doubled ? (F)(20.0f) : doubled, n) + 1.0f;
  e = (F)(KBits(e) + (KWhole(n) << 23));
#endif
  const F large = 1.0f - KOver((F)(2.0f), e + 1.0f);
  return KWithSign(a >= 0.625f ? large : small, x);
}
// By the table; else below 1 an odd polynomial, above it 1 - 2^q(|x|) with q fitted to log2(erfc).
template <int W>
KILN_FN Vec<float, W> KErf(Vec<float, W> x) {
#ifdef __AVX512F__
  if constexpr (W == 16) return KOddFromTable(kErfTable, 0.125f, 3.937f, x);
#endif
  using F = Vec<float, W>;
  const F a = __builtin_elementwise_abs(x), u = x * x;
  const F small = KMad(KPoly(u, 0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2ce6p-4f, -0x1.b7f71ap-6f,
                             0x1.53f224p-8f, -0x1.a3515ep-11f, 0x1.4771fep-14f),
                       a, a);
  const F b = (F)(4.0f) < a ? (F)(4.0f) : a;
  const F q = KPoly(b, -0x1.09edb4p-11f, -0x1.a040b2p+0f, -0x1.d76bfap-1f, -0x1.3078acp-3f,
                    0x1.01c4b2p-5f, -0x1.160d72p-8f, 0x1.18ea74p-12f);
#ifdef KILN_ON_GPU
  const F power = KFastExp2(q);
#else
  const F t = q + KILN_ROUNDER;
  const F power = (F)(KBits(KExp2Small(q - (t - KILN_ROUNDER))) + (KBits(t) << 23));
#endif
  return KWithSign(a >= 1.0f ? 1.0f - power : small, x);
}

// ---- Logarithms ----------------------------------------------------------------------------

// x = 2^e (1 + f) with 1 + f in [2/3, 4/3), for finite x > 0.
template <int W>
KILN_FN Vec<float, W> KLogReduced(Vec<float, W> x, Vec<float, W>& e) {
  using F = Vec<float, W>;
  const auto subnormal = x < 0x1p-126f;
  x = subnormal ? x * 0x1p23f : x;
  const Vec<int, W> k = (KBits(x) - 0x3f2aaaab) >> 23;
  e = __builtin_convertvector(k, F) - (subnormal ? (F)(23.0f) : (F)(0.0f));
  return (F)(KBits(x) - (k << 23)) - 1.0f;
}
// log(1 + f) - f for |f| <= 1/3.
template <int W>
KILN_FN Vec<float, W> KLog1pTail(Vec<float, W> f) {
  const Vec<float, W> p =
      KPoly(f, -0.5f, 0x1.555506p-2f, -0x1.fffefap-3f, 0x1.99d04ep-3f, -0x1.559c74p-3f,
            0x1.1ed584p-3f, -0x1.f3306p-4f, 0x1.1e6c42p-3f, -0x1.07cab8p-3f);
  return f * f * p;
}
// `result`, computed for x in (0, inf), or what a logarithm is elsewhere.
template <class V>
KILN_FN V KLogSpecial(V x, V result) {
  const V inf = (V)(__builtin_inff());
  result = x < inf ? result : x;
  result = x < 0 ? (V)(__builtin_nanf("")) : result;
  return x == 0 ? -inf : result;
}
template <int W>
KILN_FN Vec<float, W> KLog(Vec<float, W> x) {
  using F = Vec<float, W>;
  F e;
  const F f = KLogReduced(x, e);
  const F low = f + KMad(e, (F)(0x1.7f7d1cp-20f), KLog1pTail(f));
  return KLogSpecial(x, KMad(e, (F)(0x1.62e4p-1f), low));
}
// (f + tail) * c, c in two parts of which the first has 12 bits; f is cut so that its product with
// that part is exact. `more` is added to the low part.
template <int W>
KILN_FN Vec<float, W> KLogScaled(Vec<float, W> f, float c_high, float c_low, Vec<float, W> more) {
  using F = Vec<float, W>;
  const F f_high = (F)(KBits(f) & ~0xfff);
  const F c = (F)(c_high + c_low);
  return f_high * c_high + (((f - f_high) * c_high + f * c_low) + KMad(KLog1pTail(f), c, more));
}
template <int W>
KILN_FN Vec<float, W> KLog2(Vec<float, W> x) {
  Vec<float, W> e;
  const Vec<float, W> f = KLogReduced(x, e);
  const Vec<float, W> zero = (Vec<float, W>)(0.0f);
  return KLogSpecial(x, e + KLogScaled(f, 0x1.714p+0f, 0x1.47652cp-12f, zero));
}
template <int W>
KILN_FN Vec<float, W> KLog10(Vec<float, W> x) {
  Vec<float, W> e;
  const Vec<float, W> f = KLogReduced(x, e);
  return KLogSpecial(
      x, e * 0x1.344p-2f + KLogScaled(f, 0x1.bcap-2f, 0x1.7b1526p-14f, e * 0x1.3509f8p-18f));
}
// As log(u) with u = 1 + x rounded, and what the rounding lost added to the reduced argument.
template <int W>
KILN_FN Vec<float, W> KLog1p(Vec<float, W> x) {
  using F = Vec<float, W>;
  const F u = x + 1.0f;
  const F lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  F e;
  const F m = KLogReduced(u, e);
  Vec<int, W> exponent = 127 - __builtin_convertvector(e, Vec<int, W>);
  exponent = exponent < 0 ? 0 : exponent;
  const F f = m + lost * (F)(exponent << 23);
  const F low = f + KMad(e, (F)(0x1.7f7d1cp-20f), KLog1pTail(f));
  const F result = KLogSpecial(u, KMad(e, (F)(0x1.62e4p-1f), low));
  return __builtin_elementwise_abs(x) < 0x1p-25f ? x : result;
}
