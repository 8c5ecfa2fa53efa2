// Part of every generated kernel: vectors, conversion, indices. It includes nothing.
// Every value in a kernel is a Vec<T, W>: W lanes where it differs along the vectorised loop, one
// lane where it does not. `n` is the number of active lanes of a tail.
#pragma clang diagnostic ignored "-Wpsabi"
#pragma clang fp contract(off)

// nodebug: what they become counts as the kernel's line that calls them, which the page shows.
#define KILN_INLINE __attribute__((always_inline, nodebug))
// Before a loop that the compiler shall leave as it is: kernels say themselves what is a vector.
#define KILN_ROLLED _Pragma("clang loop unroll(disable) vectorize(disable)")
// Before a loop over the lanes of a vector that are dealt with one by one: on a GPU each is a
// register of its own, which has no number at run time.
#ifdef __NVPTX__
#define KILN_EACH_LANE _Pragma("clang loop unroll(full)")
#else
#define KILN_EACH_LANE _Pragma("clang loop unroll(disable) vectorize(disable)")
#endif
#define KILN_FN static inline __attribute__((always_inline, nodebug))
// Bytes of a register.
#if defined(__AVX512F__)
#define KILN_VECTOR 64
#elif defined(__AVX__)
#define KILN_VECTOR 32
#else
#define KILN_VECTOR 16
#endif

template <class T, int W>
using Vec = T __attribute__((ext_vector_type(W)));

using KBf16 = unsigned short;  // the bits of a bfloat16; no integer type of a kernel is unsigned 16

template <int N>
struct KIntOfSize;
template <>
struct KIntOfSize<1> {
  using Type = signed char;
};
template <>
struct KIntOfSize<2> {
  using Type = short;
};
template <>
struct KIntOfSize<4> {
  using Type = int;
};
template <>
struct KIntOfSize<8> {
  using Type = long;
};
template <class T>
using KInt = typename KIntOfSize<sizeof(T)>::Type;

// As the machine's instructions name an integer of the size.
template <int N>
struct KMachineIntOfSize {
  using Type = long long;
};
template <>
struct KMachineIntOfSize<1> {
  using Type = char;
};
template <>
struct KMachineIntOfSize<2> {
  using Type = short;
};
template <>
struct KMachineIntOfSize<4> {
  using Type = int;
};
template <class T>
using KMachineInt = typename KMachineIntOfSize<sizeof(T)>::Type;

template <class T>
inline constexpr bool kIsFloat = false;
template <>
inline constexpr bool kIsFloat<float> = true;
template <>
inline constexpr bool kIsFloat<double> = true;
template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

// ---- Making vectors ------------------------------------------------------------------------

// 0 to W - 1 as arguments of a template: a list of expressions, one a lane, is vectors at once, and
// a loop over lanes becomes that in LLVM after much work.
template <class T, T... I>
struct KNumbers {};
template <int W>
using KLanes = __make_integer_seq<KNumbers, int, W>;

template <class T, int... I>
KILN_FN Vec<T, sizeof...(I)> KNumbered(KNumbers<int, I...>) {
  return {T(I)...};
}

template <class T, int W>
KILN_FN Vec<T, W> KConst(T x) {
  if constexpr (kSameType<T, bool>) {
    return __builtin_convertvector((Vec<signed char, W>)((signed char)x), Vec<bool, W>);
  } else {
    return (Vec<T, W>)(x);
  }
}
template <int W, class T>
KILN_FN Vec<T, W> KSplat(Vec<T, 1> x) {
  if constexpr (W == 1) {
    return x;
  } else {
    return KConst<T, W>(x[0]);
  }
}
template <int W>
KILN_FN Vec<long, W> KIota(long base, long step) {
  return KNumbered<long>(KLanes<W>()) * step + base;
}
// Lanes below n.
template <int W>
KILN_FN Vec<bool, W> KActive(long n) {
  return __builtin_convertvector(KNumbered<int>(KLanes<W>()) < (Vec<int, W>)((int)n), Vec<bool, W>);
}

// ---- Choice and comparison -----------------------------------------------------------------

template <class T, int W>
KILN_FN Vec<T, W> KSelect(Vec<bool, W> c, Vec<T, W> a, Vec<T, W> b) {
  if constexpr (kSameType<T, bool>) {
    return (c & a) | (~c & b);
  } else {
    using I = KInt<T>;
    return -__builtin_convertvector(c, Vec<I, W>) ? a : b;
  }
}
#define KILN_COMPARE(NAME, OP)                              \
  template <class T, int W>                                 \
  KILN_FN Vec<bool, W> NAME(Vec<T, W> a, Vec<T, W> b) {     \
    return __builtin_convertvector((a OP b), Vec<bool, W>); \
  }
KILN_COMPARE(KEq, ==)
KILN_COMPARE(KNe, !=)
KILN_COMPARE(KLt, <)
KILN_COMPARE(KLe, <=)
KILN_COMPARE(KGt, >)
KILN_COMPARE(KGe, >=)
#undef KILN_COMPARE
template <int W>
KILN_FN bool KAllTrue(Vec<bool, W> c) {
  return __builtin_reduce_min(__builtin_convertvector(c, Vec<unsigned char, W>)) != 0;
}
template <int W>
KILN_FN bool KAnyTrue(Vec<bool, W> c) {
  return __builtin_reduce_max(__builtin_convertvector(c, Vec<unsigned char, W>)) != 0;
}

// ---- Conversion ----------------------------------------------------------------------------

#ifdef __NVPTX__
// Of pairs, as they lie in registers.
template <int... I>
KILN_FN auto KPairsToFloat(Vec<unsigned, sizeof...(I) / 2> pairs, KNumbers<int, I...>) {
  constexpr int kPairs = sizeof...(I) / 2;
  return (Vec<float, 2 * kPairs>)__builtin_shufflevector(pairs << 16, pairs & 0xffff0000u,
                                                         (I % 2 * kPairs + I / 2)...);
}
template <int W, int... I>
KILN_FN auto KFloatToPairs(Vec<float, W> x, KNumbers<int, I...>) {
  return Vec<unsigned, W / 2>{
      __builtin_bit_cast(unsigned, __nvvm_ff2bf16x2_rn(x[2 * I + 1], x[2 * I]))...};
}
#endif
template <int W>
KILN_FN Vec<float, W> KBf16ToFloat(Vec<KBf16, W> x) {
#ifdef __NVPTX__
  if constexpr (W % 2 == 0) return KPairsToFloat((Vec<unsigned, W / 2>)x, KLanes<W>());
#endif
  return (Vec<float, W>)(__builtin_convertvector(x, Vec<unsigned, W>) << 16);
}
// To nearest, ties to even; a NaN stays one.
template <int W>
KILN_FN Vec<KBf16, W> KFloatToBf16(Vec<float, W> x) {
#ifdef __NVPTX__
  if constexpr (W == 1) {
    return Vec<KBf16, 1>((KBf16) __builtin_bit_cast(unsigned, __nvvm_ff2bf16x2_rn(0.0f, x[0])));
  } else {
    return (Vec<KBf16, W>)KFloatToPairs(x, KLanes<W / 2>());
  }
#else
  const Vec<unsigned, W> bits = (Vec<unsigned, W>)x;
  const Vec<unsigned, W> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Vec<unsigned, W> nan = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x != x ? nan : rounded, Vec<KBf16, W>);
#endif
}
#if defined(__NVPTX__)
template <int W>
KILN_FN Vec<float, W> KHalfToFloat(Vec<_Float16, W> x) {
  return __builtin_convertvector(x, Vec<float, W>);
}
template <int W>
KILN_FN Vec<_Float16, W> KFloatToHalf(Vec<float, W> x) {
  return __builtin_convertvector(x, Vec<_Float16, W>);
}
#elif defined(__F16C__)
// The fence keeps LLVM from comparing halves themselves, which takes one lane at a time where the
// processor has no arithmetic on them.
template <int W>
KILN_FN Vec<float, W> KHalfToFloat(Vec<_Float16, W> x) {
#pragma clang fp reassociate(on)  // without it there are no fences
  return __arithmetic_fence(__builtin_convertvector(x, Vec<float, W>));
}
template <int W>
KILN_FN Vec<_Float16, W> KFloatToHalf(Vec<float, W> x) {
  return __builtin_convertvector(x, Vec<_Float16, W>);
}
#else
// A multiplication by 2^112 moves the exponent's bias and normalises subnormal numbers.
template <int W>
KILN_FN Vec<float, W> KHalfToFloat(Vec<_Float16, W> x) {
  const Vec<unsigned, W> h = __builtin_convertvector((Vec<unsigned short, W>)x, Vec<unsigned, W>);
  const Vec<unsigned, W> magnitude = (h & 0x7fffu) << 13;
  const Vec<float, W> finite = (Vec<float, W>)magnitude * 0x1p112f;
  const Vec<unsigned, W> bits = magnitude >= (Vec<unsigned, W>)(0x0f800000u)
                                    ? (magnitude | 0x7f800000u)
                                    : (Vec<unsigned, W>)finite;
  return (Vec<float, W>)(bits | ((h & 0x8000u) << 16));
}
// Numbers below 2^-14 are rounded by adding 0.5, whose last place is 2^-24, the last place of a
// subnormal half.
template <int W>
KILN_FN Vec<_Float16, W> KFloatToHalf(Vec<float, W> x) {
  using U = Vec<unsigned, W>;
  const U bits = (U)x;
  const U magnitude = bits & 0x7fffffffu;
  const U small = (U)((Vec<float, W>)magnitude + 0.5f) - 0x3f000000u;
  const U normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const U infinite = x != x ? (U)(0x7e00u) : (U)(0x7c00u);
  U half = magnitude < (U)(0x38800000u) ? small : normal;
  half = magnitude >= (U)(0x477ff000u) ? infinite : half;
  half |= (bits >> 16) & 0x8000u;
  return (Vec<_Float16, W>)__builtin_convertvector(half, Vec<unsigned short, W>);
}
#endif

// Value-preserving where the target type holds the value; float -> integer truncates, then wraps as
// ATen does on x86: short types by way of int, unsigned ones of long; anything -> bool is x != 0.
template <class To, class From, int W>
KILN_FN Vec<To, W> KCast(Vec<From, W> x) {
  if constexpr (kSameType<To, From>) {
    return x;
  } else if constexpr (kSameType<From, KBf16>) {
    return KCast<To>(KBf16ToFloat(x));
  } else if constexpr (kSameType<From, _Float16>) {
    return KCast<To>(KHalfToFloat(x));
  } else if constexpr (kSameType<To, KBf16>) {
    return KFloatToBf16(KCast<float>(x));
  } else if constexpr (kSameType<To, _Float16>) {
    return KFloatToHalf(KCast<float>(x));
  } else if constexpr (kSameType<To, bool>) {
    return __builtin_convertvector(x != (Vec<From, W>)(0), Vec<bool, W>);
  } else if constexpr (kSameType<From, double> && kSameType<To, unsigned char>) {
    return __builtin_convertvector(__builtin_convertvector(x, Vec<long, W>), Vec<To, W>);
  } else if constexpr (kIsFloat<From> && !kIsFloat<To> && sizeof(To) < 4) {
    return __builtin_convertvector(__builtin_convertvector(x, Vec<int, W>), Vec<To, W>);
  } else {
    return __builtin_convertvector(x, Vec<To, W>);
  }
}

// ---- Integer index arithmetic --------------------------------------------------------------

template <class T>
struct KUnsignedOf {
  using Type = unsigned long;
};
template <>
struct KUnsignedOf<int> {
  using Type = unsigned;
};
// Of int where both are, else of long.
template <class A, class B>
using KIndexOf = decltype(A() + B());

// Of numbers known not to be negative.
template <class A, class B>
KILN_FN KIndexOf<A, B> KDiv(A a, B b) {
  using I = KIndexOf<A, B>;
  using U = typename KUnsignedOf<I>::Type;
  return (I)((U)a / (U)b);
}
template <class A, class B>
KILN_FN KIndexOf<A, B> KRem(A a, B b) {
  using I = KIndexOf<A, B>;
  using U = typename KUnsignedOf<I>::Type;
  return (I)((U)a % (U)b);
}
// The same value, of which LLVM does not know what it is the sum of.
KILN_FN long KOnce(long value) {
  asm("" : "+r"(value));
  return value;
}

template <class A, class B>
KILN_FN KIndexOf<A, B> KFloorDivIndex(A a, B b) {
  const KIndexOf<A, B> q = a / b;
  return q - ((a % b != 0) & ((a < 0) != (b < 0)));
}
template <class A, class B>
KILN_FN KIndexOf<A, B> KModIndex(A a, B b) {
  return a - KFloorDivIndex(a, b) * b;
}
template <class A, class B>
KILN_FN KIndexOf<A, B> KMinIndex(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
KILN_FN KIndexOf<A, B> KMaxIndex(A a, B b) {
  return a > b ? a : b;
}

// Quotients of integers as the machine divides, one at a time: 0 where b is 0; the least number
// divided by -1 wraps.
template <class T, int W>
KILN_FN Vec<T, W> KTruncDivEach(Vec<T, W> a, Vec<T, W> b) {
  Vec<T, W> q;
  KILN_EACH_LANE
  for (int i = 0; i < W; ++i) {
    const T d = b[i];
    q[i] = d == 0 ? T(0) : d == T(-1) && T(-1) < T(0) ? T(0ul - (unsigned long)a[i]) : T(a[i] / d);
  }
  return q;
}
