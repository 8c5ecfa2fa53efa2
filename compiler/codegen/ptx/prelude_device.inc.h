// Goes on where prelude_core.inc.h ends: memory of an NVIDIA GPU, and what a C library has. Buffers
// begin at multiples of 16 bytes.

#define KILN_ON_GPU
#define KILN_PRAGMA(TEXT) _Pragma(#TEXT)
#define KILN_UNROLLED(TIMES) KILN_PRAGMA(clang loop unroll_count(TIMES))
#define KILN_ALL_UNROLLED _Pragma("clang loop unroll(full)")

// ---- Memory --------------------------------------------------------------------------------

// As elements are stored.
template <class T>
struct KStoredAs {
  using Type = T;
};
template <>
struct KStoredAs<bool> {
  using Type = unsigned char;
};
template <class T>
using KStored = typename KStoredAs<T>::Type;

template <class T, int W>
KILN_FN Vec<T, W> KFromStored(Vec<KStored<T>, W> x) {
  return KCast<T>(x);
}
template <class T, int W>
KILN_FN Vec<KStored<T>, W> KToStored(Vec<T, W> x) {
  return __builtin_convertvector(x, Vec<KStored<T>, W>);
}

// Elements that one access takes, where the address is a multiple of A of them: at most 16 bytes.
template <class T, int W, int A>
inline constexpr int kAccess = A * sizeof(T) <= 16 ? (A < W ? A : W) : 16 / (int)sizeof(T);
// Whether one access takes all W as they are.
template <class T, int W, int A>
inline constexpr bool kOneAccess = kSameType<KStored<T>, T> && kAccess<T, W, A> == W;

template <int W, int A, class T>
KILN_FN Vec<T, W> KLoadAligned(const T* p) {
  using S = KStored<T>;
  constexpr int kPiece = kAccess<S, W, A>;
  if constexpr (kPiece == W) {
    return KFromStored<T, W>(*(const Vec<S, W>*)p);
  } else {
    Vec<S, W> x;
#pragma clang loop unroll(full)
    for (int i = 0; i < W; i += kPiece) {
      const Vec<S, kPiece> piece = *(const Vec<S, kPiece>*)((const S*)p + i);
#pragma clang loop unroll(full)
      for (int j = 0; j < kPiece; ++j) x[i + j] = piece[j];
    }
    return KFromStored<T, W>(x);
  }
}
template <int A, class T, int W>
KILN_FN void KStoreAligned(T* p, Vec<T, W> value) {
  using S = KStored<T>;
  constexpr int kPiece = kAccess<S, W, A>;
  const Vec<S, W> x = KToStored(value);
  if constexpr (kPiece == W) {
    *(Vec<S, W>*)p = x;
  } else {
#pragma clang loop unroll(full)
    for (int i = 0; i < W; i += kPiece) {
      Vec<S, kPiece> piece;
#pragma clang loop unroll(full)
      for (int j = 0; j < kPiece; ++j) piece[j] = x[i + j];
      *(Vec<S, kPiece>*)((S*)p + i) = piece;
    }
  }
}
template <int W, class T>
KILN_FN Vec<T, W> KLoadAll(const T* p) {
  return KLoadAligned<W, 1>(p);
}
template <class T, int W>
KILN_FN void KStoreAll(T* p, Vec<T, W> x) {
  KStoreAligned<1>(p, x);
}

// Lane i from read(i) for active lanes, `other` for those that are not.
template <class T, int W, bool kTail, class F>
KILN_FN Vec<T, W> KGather(long n, F read, T other = T(0)) {
  Vec<KStored<T>, W> x;
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) x[i] = (KStored<T>)(!kTail || i < n ? read(i) : other);
  return KFromStored<T, W>(x);
}
template <class T, int W, bool kTail, class F>
KILN_FN Vec<T, W> KGatherMasked(long n, Vec<bool, W> mask, T other, F read) {
  const Vec<unsigned char, W> active = KToStored(mask);
  return KGather<T, W, false>(
      n, [&](long i) KILN_INLINE { return active[i] && (!kTail || i < n) ? read(i) : other; });
}
// The same of elements that follow each other from p on; p is a multiple of A elements.
template <int W, bool kTail, int A = 1, class T>
KILN_FN Vec<T, W> KLoad(const T* p, long n) {
  if constexpr (kTail) {
    return KGather<T, W, true>(n, [=](long i) KILN_INLINE { return p[i]; });
  } else if constexpr (kOneAccess<T, W, A>) {
    return *(const Vec<T, W>*)p;
  } else {
    return KLoadAligned<W, A>(p);
  }
}
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadMasked(const T* p, long n, Vec<bool, W> mask, T other) {
  return KGatherMasked<T, W, kTail>(n, mask, other, [=](long i) KILN_INLINE { return p[i]; });
}
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadEven(const T* p, long n) {
  return KGather<T, W, kTail>(n, [=](long i) KILN_INLINE { return p[2 * i]; });
}
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadEvenMasked(const T* p, long n, Vec<bool, W> mask, T other) {
  return KGatherMasked<T, W, kTail>(n, mask, other, [=](long i) KILN_INLINE { return p[2 * i]; });
}
// Passes each active lane to write(i, value), in order.
template <bool kTail, class T, int W, class F>
KILN_FN void KScatter(long n, Vec<T, W> value, F write) {
  const Vec<KStored<T>, W> x = KToStored(value);
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) {
    if (!kTail || i < n) write(i, (T)x[i]);
  }
}
template <bool kTail, int A = 1, class T, int W>
KILN_FN void KStore(T* p, long n, Vec<T, W> x) {
  if constexpr (kTail) {
    KScatter<true>(n, x, [=](long i, T value) KILN_INLINE { p[i] = value; });
  } else if constexpr (kOneAccess<T, W, A>) {
    *(Vec<T, W>*)p = x;
  } else {
    KStoreAligned<A>(p, x);
  }
}
// An index from a tensor: outside [0, extent) it sets the error and counts as 0.
KILN_FN long KCheck(long index, long extent, int* error) {
  if (__builtin_expect((unsigned long)index < (unsigned long)extent, 1)) return index;
  *error = 1;
  return 0;
}

// ---- What the machine computes by itself -----------------------------------------------------

#ifdef __NVPTX__
// 2^x and 1 / x within 2 units in the last place; what is subnormal counts as zero.
KILN_FN float KMachineExp2(float x) {
  return __nvvm_ex2_approx_ftz_f(x);
}
KILN_FN float KMachineInverse(float x) {
  return __nvvm_rcp_approx_ftz_f(x);
}
// 1 / x and 1 / sqrt(x) within 2^-22.9 of the value.
KILN_FN float KMachineReciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KILN_FN float KMachineRsqrt(float x) {
  return __nvvm_rsqrt_approx_f(x);
}
// The greater and the lesser; NaN where one is.
KILN_FN float KMachineMax(float a, float b) {
  return __nvvm_fmax_nan_f(a, b);
}
KILN_FN float KMachineMin(float a, float b) {
  return __nvvm_fmin_nan_f(a, b);
}
// a * b + c, rounded once, within [0, 1]; 0 for a NaN.
KILN_FN float KMachineShare(float a, float b, float c) {
  float x;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(x) : "f"(a), "f"(b), "f"(c));
  return x;
}
// The logarithm to base 2, within 2^-22 of the value or of 1.
KILN_FN float KMachineLog2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Within 2 units in the last place for |b| in [2^-126, 2^126].
KILN_FN float KMachineQuotient(float a, float b) {
  float q;
  asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
  return q;
}
#endif

// ---- What a C library has ------------------------------------------------------------------

// The exponent of x as if it had no bound, for 0 < x < inf.
KILN_FN int KExponentOf(float x) {
  const int bits = __builtin_bit_cast(int, x);
  if (bits < 0x00800000) return (__builtin_bit_cast(int, x * 0x1p24f) >> 23) - 127 - 24;
  return (bits >> 23) - 127;
}
KILN_FN int KExponentOf(double x) {
  const long bits = __builtin_bit_cast(long, x);
  if (bits < 0x0010000000000000) {
    return (int)(__builtin_bit_cast(long, x * 0x1p54) >> 52) - 1023 - 54;
  }
  return (int)(bits >> 52) - 1023;
}
// Integers: 0 where b is 0; the least number divided by -1 wraps.
template <class T, int W>
KILN_FN Vec<T, W> KTruncDiv(Vec<T, W> a, Vec<T, W> b) {
  return KTruncDivEach(a, b);
}
// x * 2^n, exact wherever the result is a number of the type; n >= 0.
KILN_FN float KTimesPower(float x, int n) {
  for (; n > 120; n -= 120) x *= 0x1p120f;
  return x * __builtin_bit_cast(float, (n + 127) << 23);
}
KILN_FN double KTimesPower(double x, int n) {
  for (; n > 1000; n -= 1000) x *= 0x1p1000;
  return x * __builtin_bit_cast(double, (long)(n + 1023) << 52);
}
// Exact: of what is left the largest b * 2^n that it holds is taken away, a power at a time; each
// difference is a number of the type (Sterbenz).
template <class T>
KILN_FN T KFmodOf(T a, T b) {
  const T inf = (T)__builtin_inf();
  T left = __builtin_elementwise_abs(a);
  const T by = __builtin_elementwise_abs(b);
  if (!(left < inf) || !(by > 0) || by != by) return (T)__builtin_nan("");
  if (left < by) return a;
  const int exponent = KExponentOf(by);
  while (left >= by) {
    const int n = KExponentOf(left) - exponent;
    const T part = KTimesPower(by, n);
    left -= part > left ? KTimesPower(by, n - 1) : part;
  }
  return __builtin_elementwise_copysign(left, a);
}
