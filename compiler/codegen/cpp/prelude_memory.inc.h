// Goes on where prelude_core.inc.h ends: memory access, and what a C library has.

// ---- Memory --------------------------------------------------------------------------------

template <int W, class T>
KILN_FN Vec<T, W> KLoadAll(const T* p) {
  if constexpr (kSameType<T, bool>) {
    return KCast<bool>(KLoadAll<W>((const unsigned char*)p));
  } else {
    Vec<T, W> x;
    __builtin_memcpy(&x, p, sizeof(T) * W);
    return x;
  }
}
template <class T, int W>
KILN_FN void KStoreAll(T* p, Vec<T, W> x) {
  if constexpr (kSameType<T, bool>) {
    KStoreAll((unsigned char*)p, __builtin_convertvector(x, Vec<unsigned char, W>));
  } else {
    __builtin_memcpy(p, &x, sizeof(T) * W);
  }
}

// ---- Some lanes of a vector ------------------------------------------------------------------

// Of the lanes that a mask leaves out nothing is read or written: they may lie outside of any
// memory. KLaneMask is a mask as the instructions for it take them, which are there for vectors
// that kHasMaskedAccess names.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__BMI2__)

template <class T, int W>
inline constexpr bool kHasMaskedAccess = W >= 8 && W <= 64 && sizeof(T) * W >= 16;
template <class T, int W>
using KLaneMask = unsigned long;  // one bit a lane

#define KILN_MASKED(T, LANES, NAME, POINTED, MASK)                              \
  KILN_FN Vec<T, LANES> KLoadPart(const T* p, MASK mask, Vec<T, LANES> other) { \
    return __builtin_ia32_loaddqu##NAME##_mask((const POINTED*)p, other, mask); \
  }                                                                             \
  KILN_FN void KStorePart(T* p, MASK mask, Vec<T, LANES> x) {                   \
    __builtin_ia32_storedqu##NAME##_mask((POINTED*)p, x, mask);                 \
  }
#define KILN_MASKED_PART(T, LANES, NAME, MASK) \
  using KPart##NAME = Vec<T, LANES>;           \
  KILN_MASKED(T, LANES, NAME, KPart##NAME, MASK)
KILN_MASKED_PART(char, 64, qi512, unsigned long long)
KILN_MASKED_PART(char, 32, qi256, unsigned)
KILN_MASKED_PART(char, 16, qi128, unsigned short)
KILN_MASKED_PART(short, 32, hi512, unsigned)
KILN_MASKED_PART(short, 16, hi256, unsigned short)
KILN_MASKED_PART(short, 8, hi128, unsigned char)
KILN_MASKED(int, 16, si512, int, unsigned short)
KILN_MASKED_PART(int, 8, si256, unsigned char)
KILN_MASKED(long long, 8, di512, long long, unsigned char)
#undef KILN_MASKED
#undef KILN_MASKED_PART

template <class T, int W>
KILN_FN KLaneMask<T, W> KToLaneMask(Vec<bool, W> mask) {
  unsigned long bits = 0;
  __builtin_memcpy(&bits, &mask, W / 8);
  return bits;
}
// Of lanes 0, 2, 4 and so on of the two vectors that together have every lane of `mask` there; the
// odd lanes are left out.
template <class T, int W>
KILN_FN void KSpreadMask(KLaneMask<T, W> mask, KLaneMask<T, W>& low, KLaneMask<T, W>& high) {
  const unsigned long even = 0x5555555555555555;
  low = __builtin_ia32_pdep_di(mask, even);
  high = __builtin_ia32_pdep_di(mask >> W / 2, even);
}
template <int W, class T>
KILN_FN Vec<T, W> KLoadLanes(const T* p, KLaneMask<T, W> mask, Vec<T, W> other) {
  using Int = KMachineInt<T>;
  constexpr int kPart = sizeof(T) * W > 64 ? 64 / (int)sizeof(T) : W;
  Vec<Int, kPart> parts[W / kPart];
  __builtin_memcpy(parts, &other, sizeof(parts));
#pragma clang loop unroll(full)
  for (int i = 0; i < W / kPart; ++i) {
    parts[i] = KLoadPart((const Int*)p + i * kPart, mask >> i * kPart, parts[i]);
  }
  __builtin_memcpy(&other, parts, sizeof(parts));
  return other;
}
template <class T, int W>
KILN_FN void KStoreLanes(T* p, KLaneMask<T, W> mask, Vec<T, W> x) {
  using Int = KMachineInt<T>;
  constexpr int kPart = sizeof(T) * W > 64 ? 64 / (int)sizeof(T) : W;
  Vec<Int, kPart> parts[W / kPart];
  __builtin_memcpy(parts, &x, sizeof(parts));
#pragma clang loop unroll(full)
  for (int i = 0; i < W / kPart; ++i) {
    KStorePart((Int*)p + i * kPart, mask >> i * kPart, parts[i]);
  }
}

#elif defined(__AVX2__)

template <class T, int W>
inline constexpr bool kHasMaskedAccess = sizeof(T) >= 4 && sizeof(T) * W >= 16;
template <class T, int W>
using KLaneMask = Vec<KMachineInt<T>, W>;  // all bits of a lane or none

template <class T, int W>
KILN_FN KLaneMask<T, W> KToLaneMask(Vec<bool, W> mask) {
  return -__builtin_convertvector(mask, KLaneMask<T, W>);
}
template <class T, int W>
KILN_FN void KSpreadMask(KLaneMask<T, W> mask, KLaneMask<T, W>& low, KLaneMask<T, W>& high) {
  KLaneMask<T, W> spread[2] = {};
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) spread[2 * i / W][2 * i % W] = mask[i];
  low = spread[0];
  high = spread[1];
}
// A part is a register at most.
template <class T, int W>
inline constexpr int kPartLanes = sizeof(T) * W > 32 ? 32 / (int)sizeof(T) : W;
template <int W, class T>
KILN_FN Vec<T, W> KLoadLanes(const T* p, KLaneMask<T, W> mask, Vec<T, W> other) {
  constexpr int kPart = kPartLanes<T, W>;
  using Part = Vec<KMachineInt<T>, kPart>;
  Part masks[W / kPart], parts[W / kPart];
  __builtin_memcpy(masks, &mask, sizeof(masks));
#pragma clang loop unroll(full)
  for (int i = 0; i < W / kPart; ++i) {
    const auto from = (const Part*)(p + i * kPart);
    if constexpr (sizeof(T) == 4 && sizeof(Part) == 32) {
      parts[i] = __builtin_ia32_maskloadd256(from, masks[i]);
    } else if constexpr (sizeof(T) == 4) {
      parts[i] = __builtin_ia32_maskloadd(from, masks[i]);
    } else if constexpr (sizeof(Part) == 32) {
      parts[i] = __builtin_ia32_maskloadq256(from, masks[i]);
    } else {
      parts[i] = __builtin_ia32_maskloadq(from, masks[i]);
    }
  }
  Vec<T, W> x;
  __builtin_memcpy(&x, parts, sizeof(x));
  return mask ? x : other;
}
// As floating-point numbers: of these AMD's processors make fewer operations.
template <class T, int W>
KILN_FN void KStoreLanes(T* p, KLaneMask<T, W> mask, Vec<T, W> x) {
  constexpr int kPart = kPartLanes<T, W>;
  using Part = Vec<KMachineInt<T>, kPart>;
  Part masks[W / kPart], parts[W / kPart];
  __builtin_memcpy(masks, &mask, sizeof(masks));
  __builtin_memcpy(parts, &x, sizeof(parts));
#pragma clang loop unroll(full)
  for (int i = 0; i < W / kPart; ++i) {
    T* const to = p + i * kPart;
    if constexpr (sizeof(T) == 4 && sizeof(Part) == 32) {
      __builtin_ia32_maskstoreps256((Vec<float, 8>*)to, masks[i], (Vec<float, 8>)parts[i]);
    } else if constexpr (sizeof(T) == 4) {
      __builtin_ia32_maskstoreps((Vec<float, 4>*)to, masks[i], (Vec<float, 4>)parts[i]);
    } else if constexpr (sizeof(Part) == 32) {
      __builtin_ia32_maskstorepd256((Vec<double, 4>*)to, masks[i], (Vec<double, 4>)parts[i]);
    } else {
      __builtin_ia32_maskstorepd((Vec<double, 2>*)to, masks[i], (Vec<double, 2>)parts[i]);
    }
  }
}

#else

template <class T, int W>
inline constexpr bool kHasMaskedAccess = false;
// What is never called.
template <class T, int W>
using KLaneMask = Vec<bool, W>;
template <class T, int W>
KLaneMask<T, W> KToLaneMask(Vec<bool, W> mask);
template <class T, int W>
void KSpreadMask(KLaneMask<T, W> mask, KLaneMask<T, W>& low, KLaneMask<T, W>& high);
template <int W, class T>
Vec<T, W> KLoadLanes(const T* p, KLaneMask<T, W> mask, Vec<T, W> other);
template <class T, int W>
void KStoreLanes(T* p, KLaneMask<T, W> mask, Vec<T, W> x);

#endif

// Where the mask is false nothing is read and the lane is `other`.
template <class T, int W, class F>
KILN_FN Vec<T, W> KGatherWhere(Vec<bool, W> mask, T other, F read) {
  alignas(64) T lanes[W];
  alignas(64) unsigned char active[W];
  KStoreAll((unsigned char*)active, __builtin_convertvector(mask, Vec<unsigned char, W>));
#pragma clang loop vectorize(disable) unroll(disable)
  for (int i = 0; i < W; ++i) lanes[i] = active[i] ? read(i) : other;
  return KLoadAll<W>((const T*)lanes);
}
template <int W, class T>
KILN_FN Vec<T, W> KLoadWhere(const T* p, Vec<bool, W> mask, T other) {
  if constexpr (kSameType<T, bool>) {
    return KCast<bool>(KLoadWhere<W>((const unsigned char*)p, mask, (unsigned char)other));
  } else if constexpr (kHasMaskedAccess<T, W>) {
    return KLoadLanes<W>(p, KToLaneMask<T>(mask), (Vec<T, W>)(other));
  } else {
    return KGatherWhere(mask, other, [=](long i) { return p[i]; });
  }
}
// The same of lane i from p[2 * i].
template <int W, class T>
KILN_FN Vec<T, W> KLoadEvenWhere(const T* p, Vec<bool, W> mask, T other) {
  if constexpr (kHasMaskedAccess<T, W> && !kSameType<T, bool>) {
    KLaneMask<T, W> low, high;
    KSpreadMask<T, W>(KToLaneMask<T>(mask), low, high);
    const Vec<T, W> others = (Vec<T, W>)(other);
    const Vec<T, W> first = KLoadLanes<W>(p, low, others),
                    last = KLoadLanes<W>(p + W, high, others);
    const Vec<T, W / 2> halves[2] = {first.even, last.even};
    Vec<T, W> x;
    __builtin_memcpy(&x, halves, sizeof(x));
    return x;
  } else {
    return KGatherWhere(mask, other, [=](long i) { return p[2 * i]; });
  }
}

// ---- Tails ---------------------------------------------------------------------------------

// The lanes that one mask is for.
template <int W>
inline constexpr int kMaskLanes = W > 64 ? 64 : W;

// The first n lanes from p, the others `other`.
template <int W, class T>
KILN_FN Vec<T, W> KLoadFirst(const T* p, long n, T other) {
  constexpr int kLanes = kMaskLanes<W>;
  alignas(64) T lanes[W];
  if constexpr (kHasMaskedAccess<T, kLanes> && !kSameType<T, bool>) {
#pragma clang loop unroll(full)
    for (int i = 0; i < W; i += kLanes) {
      KStoreAll(lanes + i, KLoadWhere<kLanes>(p + i, KActive<kLanes>(n - i), other));
    }
  } else {
#pragma clang loop vectorize(disable) unroll(disable)
    for (int i = 0; i < W; ++i) lanes[i] = i < n ? p[i] : other;
  }
  return KLoadAll<W>((const T*)lanes);
}
template <class T, int W>
KILN_FN void KStoreFirst(T* p, long n, Vec<T, W> x) {
  constexpr int kLanes = kMaskLanes<W>;
  alignas(64) T lanes[W];
  KStoreAll((T*)lanes, x);
  if constexpr (kHasMaskedAccess<T, kLanes> && !kSameType<T, bool>) {
#pragma clang loop unroll(full)
    for (int i = 0; i < W; i += kLanes) {
      const Vec<T, kLanes> part = KLoadAll<kLanes>((const T*)lanes + i);
      KStoreLanes(p + i, KToLaneMask<T>(KActive<kLanes>(n - i)), part);
    }
  } else {
#pragma clang loop vectorize(disable) unroll(disable)
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }
}

template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoad(const T* p, long n) {
  if constexpr (kTail) {
    return KLoadFirst<W>(p, n, T(0));
  } else {
    return KLoadAll<W>(p);
  }
}
template <bool kTail, class T, int W>
KILN_FN void KStore(T* p, long n, Vec<T, W> x) {
  if constexpr (kTail) {
    KStoreFirst(p, n, x);
  } else {
    KStoreAll(p, x);
  }
}
// The same past the caches, where the address allows: for results too large to stay there until
// somebody reads them. Other threads may count on them only after KStreamEnd().
template <bool kTail, class T, int W>
KILN_FN void KStream(T* p, long n, Vec<T, W> x) {
  constexpr int kWhole = sizeof(T) * W, kBytes = kWhole < KILN_VECTOR ? kWhole : KILN_VECTOR;
  if constexpr (!kTail && kBytes >= 16 && !kSameType<T, bool>) {
    if (__builtin_expect((unsigned long)p % kBytes == 0, 1)) {
      using Part = Vec<T, kBytes / (int)sizeof(T)>;
      Part parts[kWhole / kBytes];
      __builtin_memcpy(parts, &x, kWhole);
#pragma clang loop unroll(full)
      for (int i = 0; i < kWhole / kBytes; ++i) {
        __builtin_nontemporal_store(parts[i], (Part*)(p + i * (kBytes / (int)sizeof(T))));
      }
      return;
    }
  }
  KStore<kTail>(p, n, x);
}
KILN_FN void KStreamEnd() {
  __builtin_ia32_sfence();
}
// Asks for the lines of W elements from p in the second-level cache, or in the first where kNear is
// 3. Past a buffer's end it does no harm.
template <int W, int kNear = 2, class T>
KILN_FN void KPrefetch(const T* p) {
#pragma clang loop unroll(full)
  for (int i = 0; i < W * (int)sizeof(T); i += 64) __builtin_prefetch((const char*)p + i, 0, kNear);
}
// Lane i from read(i), for active lanes.
template <class T, int W, bool kTail, class F>
KILN_FN Vec<T, W> KGather(long n, F read) {
  if constexpr (kTail) {
    alignas(64) T lanes[W] = {};
#pragma clang loop vectorize(disable) unroll(disable)
    for (int i = 0; i < n; ++i) lanes[i] = read(i);
    return KLoadAll<W>((const T*)lanes);
  } else {
    Vec<T, W> x;
#pragma clang loop unroll(full)
    for (int i = 0; i < W; ++i) x[i] = read(i);
    return x;
  }
}
// Passes each active lane to write(i, value), in order.
template <bool kTail, class T, int W, class F>
KILN_FN void KScatter(long n, Vec<T, W> x, F write) {
  if constexpr (kTail) {
    alignas(64) T lanes[W];
    KStoreAll((T*)lanes, x);
#pragma clang loop vectorize(disable) unroll(disable)
    for (int i = 0; i < n; ++i) write(i, lanes[i]);
  } else {
#pragma clang loop unroll(full)
    for (int i = 0; i < W; ++i) write(i, x[i]);
  }
}
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadMasked(const T* p, long n, Vec<bool, W> mask, T other) {
  return KLoadWhere<W>(p, kTail ? mask & KActive<W>(n) : mask, other);
}
template <class T, int W, bool kTail, class F>
KILN_FN Vec<T, W> KGatherMasked(long n, Vec<bool, W> mask, T other, F read) {
  return KGatherWhere(kTail ? mask & KActive<W>(n) : mask, other, read);
}
// Lane i from p[2 * i].
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadEven(const T* p, long n) {
  if constexpr (!kTail && W >= 4 && W <= 16 && !kSameType<T, bool>) {
    // The second load ends with the last lane, so nothing past it is read.
    const Vec<T, W> low = KLoadAll<W>(p), high = KLoadAll<W>(p + W - 1);
    const Vec<T, W / 2> halves[2] = {low.even, high.odd};
    Vec<T, W> x;
    __builtin_memcpy(&x, halves, sizeof(x));
    return x;
  } else if constexpr (kTail && kHasMaskedAccess<T, W>) {
    return KLoadEvenWhere<W>(p, KActive<W>(n), T(0));
  } else {
    return KGather<T, W, kTail>(n, [=](long i) { return p[2 * i]; });
  }
}
template <int W, bool kTail, class T>
KILN_FN Vec<T, W> KLoadEvenMasked(const T* p, long n, Vec<bool, W> mask, T other) {
  return KLoadEvenWhere<W>(p, kTail ? mask & KActive<W>(n) : mask, other);
}
// An index from a tensor: outside [0, extent) it sets the error and counts as 0.
KILN_FN long KCheck(long index, long extent, int* error) {
  if (__builtin_expect((unsigned long)index < (unsigned long)extent, 1)) return index;
  *error = 1;
  return 0;
}
// A divisor, of which only the first n lanes count in a tail.
template <bool kTail, class T, int W>
KILN_FN Vec<T, W> KNonzero(Vec<T, W> divisor, long n, int* by_zero) {
  Vec<bool, W> is_zero = KEq(divisor, (Vec<T, W>)(T(0)));
  if constexpr (kTail) is_zero = is_zero & KActive<W>(n);
  if (__builtin_expect(KAnyTrue(is_zero), 0)) *by_zero = 1;
  return divisor;
}
KILN_FN float KFmodOf(float a, float b) {
  return __builtin_fmodf(a, b);
}
KILN_FN double KFmodOf(double a, double b) {
  return __builtin_fmod(a, b);
}
