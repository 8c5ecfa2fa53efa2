// Goes on where a target's own part about memory ends: arithmetic of vectors, reductions.
// ---- Arithmetic ----------------------------------------------------------------------------

#ifdef KILN_ON_GPU
template <int W, int... I>
KILN_FN Vec<float, W> KMachineMinEach(Vec<float, W> a, Vec<float, W> b, KNumbers<int, I...>) {
  return {KMachineMin(a[I], b[I])...};
}
#endif
template <class T, int W>
KILN_FN Vec<T, W> KMin(Vec<T, W> a, Vec<T, W> b) {
#ifdef KILN_ON_GPU
  if constexpr (__is_same(T, float)) return KMachineMinEach(a, b, KLanes<W>());
#endif
  if constexpr (kIsFloat<T>) {
    const Vec<T, W> best = a < b ? a : b;  // b where that is a NaN
    return a != a ? a : best;
  } else {
    return __builtin_elementwise_min(a, b);
  }
}
#ifdef KILN_ON_GPU
template <int W, int... I>
KILN_FN Vec<float, W> KMachineMaxEach(Vec<float, W> a, Vec<float, W> b, KNumbers<int, I...>) {
  return {KMachineMax(a[I], b[I])...};
}
#endif
template <class T, int W>
KILN_FN Vec<T, W> KMax(Vec<T, W> a, Vec<T, W> b) {
#ifdef KILN_ON_GPU
  if constexpr (__is_same(T, float)) return KMachineMaxEach(a, b, KLanes<W>());
#endif
  if constexpr (kIsFloat<T>) {
    const Vec<T, W> best = a > b ? a : b;  // b where that is a NaN
    return a != a ? a : best;
  } else {
    return __builtin_elementwise_max(a, b);
  }
}
template <class T, int W>
KILN_FN Vec<T, W> KFmod(Vec<T, W> a, Vec<T, W> b) {
  if constexpr (kIsFloat<T>) {
    Vec<T, W> r;
    KILN_EACH_LANE
    for (int i = 0; i < W; ++i) r[i] = KFmodOf(a[i], b[i]);
    return r;
  } else {
    return a - KTruncDiv(a, b) * b;
  }
}
template <class T, int W>
KILN_FN Vec<T, W> KMod(Vec<T, W> a, Vec<T, W> b) {
  const Vec<T, W> r = KFmod(a, b);
  const Vec<T, W> zero = (Vec<T, W>)(T(0));
  return ((r != zero) & ((r < zero) != (b < zero))) ? r + b : r;
}
template <class T, int W>
KILN_FN Vec<T, W> KFloorDiv(Vec<T, W> a, Vec<T, W> b) {
  const Vec<T, W> zero = (Vec<T, W>)(T(0));
  if constexpr (kIsFloat<T>) {
    // As Python: from the exact remainder, so that rounding of a / b cannot pass an integer.
    const Vec<T, W> r = KFmod(a, b);
    Vec<T, W> q = (a - r) / b;
    q = ((r != zero) & ((r < zero) != (b < zero))) ? q - (T)1 : q;
    Vec<T, W> whole = __builtin_elementwise_floor(q);
    whole = q - whole > (Vec<T, W>)((T)0.5) ? whole + (T)1 : whole;
    const Vec<T, W> quotient = a / b;
    whole = q == zero ? __builtin_elementwise_copysign(zero, quotient) : whole;
    return b == zero ? quotient : whole;
  } else {
    const Vec<T, W> q = KTruncDiv(a, b);
    const Vec<T, W> r = a - q * b;
    return ((b != zero) & (r != zero) & ((r < zero) != (b < zero))) ? q - T(1) : q;
  }
}
template <class T, int W>
KILN_FN Vec<T, W> KAbs(Vec<T, W> x) {
  if constexpr (T(-1) < T(0)) {
    return __builtin_elementwise_abs(x);
  } else {
    return x;
  }
}
template <class T, int W>
KILN_FN Vec<T, W> KSign(Vec<T, W> x) {
  const Vec<T, W> zero = (Vec<T, W>)(T(0)), one = (Vec<T, W>)(T(1));
  return x > zero ? one : x < zero ? zero - one : zero;
}
// A count outside [0, bits) shifts everything out.
template <class T, int W>
KILN_FN Vec<T, W> KShl(Vec<T, W> a, Vec<T, W> b) {
  const Vec<T, W> zero = (Vec<T, W>)(T(0)), bits = (Vec<T, W>)(T(8 * sizeof(T)));
  const auto legal = (b >= zero) & (b < bits);
  return legal ? a << (legal ? b : zero) : zero;
}
template <class T, int W>
KILN_FN Vec<T, W> KShr(Vec<T, W> a, Vec<T, W> b) {
  const Vec<T, W> zero = (Vec<T, W>)(T(0)), last = (Vec<T, W>)(T(8 * sizeof(T) - 1));
  const auto legal = (b >= zero) & (b <= last);
  const Vec<T, W> gone = T(-1) < T(0) ? a >> last : zero;
  return legal ? a >> (legal ? b : zero) : gone;
}
// Words 0 (low) and 1 of Philox4x32-10: the seed is the key, (place, stream) the counter.
template <int W>
KILN_FN Vec<long, W> KPhilox(Vec<long, W> seed, Vec<long, W> stream, Vec<long, W> place) {
  using U = Vec<unsigned long, W>;
  const U word = (U)(0xfffffffful);
  U c0 = (U)place & word, c1 = (U)place >> 32, c2 = (U)stream & word, c3 = (U)stream >> 32;
  U k0 = (U)seed & word, k1 = (U)seed >> 32;
#pragma clang loop unroll(full)
  for (int round = 0; round < 10; ++round) {
    const U a = c0 * (U)(0xD2511F53ul), b = c2 * (U)(0xCD9E8D57ul);
    c0 = (b >> 32) ^ c1 ^ k0;
    c1 = b & word;
    c2 = (a >> 32) ^ c3 ^ k1;
    c3 = a & word;
    k0 = (k0 + 0x9E3779B9ul) & word;
    k1 = (k1 + 0xBB67AE85ul) & word;
  }
  return (Vec<long, W>)(c0 | c1 << 32);
}
template <class T, int W>
KILN_FN Vec<bool, W> KIsNan(Vec<T, W> x) {
  return __builtin_convertvector(x != x, Vec<bool, W>);
}
template <class T, int W>
KILN_FN Vec<bool, W> KIsInf(Vec<T, W> x) {
  return __builtin_convertvector(__builtin_elementwise_abs(x) == (Vec<T, W>)((T)__builtin_inf()),
                                 Vec<bool, W>);
}
#define KILN_TO_WHOLE(NAME, BUILTIN)    \
  template <class T, int W>             \
  KILN_FN Vec<T, W> NAME(Vec<T, W> x) { \
    return BUILTIN(x);                  \
  }
KILN_TO_WHOLE(KFloor, __builtin_elementwise_floor)
KILN_TO_WHOLE(KCeil, __builtin_elementwise_ceil)
KILN_TO_WHOLE(KTrunc, __builtin_elementwise_trunc)
KILN_TO_WHOLE(KRound, __builtin_elementwise_roundeven)
#undef KILN_TO_WHOLE
template <class T, int W>
KILN_FN Vec<T, W> KCopysign(Vec<T, W> x, Vec<T, W> sign) {
  return __builtin_elementwise_copysign(x, sign);
}
template <class T, int W>
KILN_FN Vec<T, W> KFma(Vec<T, W> a, Vec<T, W> b, Vec<T, W> c) {
  return __builtin_elementwise_fma(a, b, c);
}
template <class T, int W>
KILN_FN Vec<T, W> KSqrt(Vec<T, W> x) {
  return __builtin_elementwise_sqrt(x);
}
template <class T, int W>
KILN_FN Vec<T, W> KRsqrt(Vec<T, W> x) {
  return (T)1 / __builtin_elementwise_sqrt(x);
}

// ---- Reductions ----------------------------------------------------------------------------

// x in active lanes, the identity of the reduction in others.
template <bool kTail, class T, int W>
KILN_FN Vec<T, W> KActiveOr(Vec<T, W> x, long n, T identity) {
  if constexpr (kTail) {
    return KSelect(KActive<W>(n), x, KConst<T, W>(identity));
  } else {
    return x;
  }
}
struct KSum {
  template <class T, int W>
  KILN_INLINE Vec<T, W> operator()(Vec<T, W> a, Vec<T, W> b) const {
    return a + b;
  }
};
struct KProd {
  template <class T, int W>
  KILN_INLINE Vec<T, W> operator()(Vec<T, W> a, Vec<T, W> b) const {
    return a * b;
  }
};
// What stands in memory with `b` folded into it, computed in C.
template <class F, class C, class T, int W>
KILN_FN Vec<T, W> KAccumulate(Vec<T, W> a, Vec<T, W> b) {
  return KCast<T>(F()(KCast<C>(a), KCast<C>(b)));
}
struct KMaxOf {
  template <class T, int W>
  KILN_INLINE Vec<T, W> operator()(Vec<T, W> a, Vec<T, W> b) const {
    return KMax(a, b);
  }
};
struct KMinOf {
  template <class T, int W>
  KILN_INLINE Vec<T, W> operator()(Vec<T, W> a, Vec<T, W> b) const {
    return KMin(a, b);
  }
};
struct KAnyOf {
  template <int W>
  KILN_INLINE Vec<bool, W> operator()(Vec<bool, W> a, Vec<bool, W> b) const {
    return a | b;
  }
};
struct KAllOf {
  template <int W>
  KILN_INLINE Vec<bool, W> operator()(Vec<bool, W> a, Vec<bool, W> b) const {
    return a & b;
  }
};
// A sum of many floats from the sums of blocks of 64 terms: 64 of those make one of the next level,
// and 64 of these one of the last.
template <class T, int W>
struct KCascade {
  Vec<T, W> levels[3];  // those that `count` says are begun
  long count = 0;       // of blocks
  KILN_INLINE void Add(Vec<T, W> block) {
    levels[0] = count % 64 == 0 ? block : levels[0] + block;
    if (__builtin_expect(++count % 64 == 0, 0)) {
      levels[1] = count % 4096 == 64 ? levels[0] : levels[1] + levels[0];
      if (count % 4096 == 0) levels[2] = count == 4096 ? levels[1] : levels[2] + levels[1];
    }
  }
  KILN_INLINE Vec<T, W> Total() const {
    Vec<T, W> total = count % 64 == 0 ? KConst<T, W>((T)0) : levels[0];
    if (count / 64 % 64 != 0) total += levels[1];
    return count >= 4096 ? total + levels[2] : total;
  }
};

// All lanes to one, pairwise. A GPU's, whose lanes are registers, at the vector's own width: its
// functions are there already, and what nobody takes of their results vanishes.
#ifdef KILN_ON_GPU
template <class Op, class T, int W, int... I>
KILN_FN Vec<T, 1> KFoldLanes(Vec<T, W> x, KNumbers<int, I...>) {
  static_assert(W <= 64);
  if constexpr (W > 32) x = Op()(x, __builtin_shufflevector(x, x, (I + 32) % W...));
  if constexpr (W > 16) x = Op()(x, __builtin_shufflevector(x, x, (I + 16) % W...));
  if constexpr (W > 8) x = Op()(x, __builtin_shufflevector(x, x, (I + 8) % W...));
  if constexpr (W > 4) x = Op()(x, __builtin_shufflevector(x, x, (I + 4) % W...));
  if constexpr (W > 2) x = Op()(x, __builtin_shufflevector(x, x, (I + 2) % W...));
  return Vec<T, 1>(Op()(x, __builtin_shufflevector(x, x, (I + 1) % W...))[0]);
}
#endif
template <class Op, class T, int W>
KILN_FN Vec<T, 1> KFold(Vec<T, W> x) {
  if constexpr (W == 1) {
    return x;
  } else if constexpr (kSameType<T, bool>) {
    const bool any = KAnyTrue(x), all = KAllTrue(x);
    return KConst<bool, 1>(kSameType<Op, KAnyOf> ? any : all);
  } else {
#ifdef KILN_ON_GPU
    return KFoldLanes<Op>(x, KLanes<W>());
#else
    Vec<T, W / 2> low, high;
    __builtin_memcpy(&low, &x, sizeof(low));
    __builtin_memcpy(&high, (const char*)&x + sizeof(low), sizeof(high));
    return KFold<Op>(Op()(low, high));
#endif
  }
}

// The best value so far of each lane and its number in the reduction's order. NaN beats numbers;
// among equals the smallest number wins.
template <class T, int W, class Number = long>
struct KBest {
  Vec<T, W> value;
  Vec<Number, W> number;
};
template <bool kGreatest, class T, int W>
KILN_FN void KUpdateBest(KBest<T, W>& best, Vec<T, W> x, Vec<long, W> number, Vec<bool, W> active) {
  Vec<bool, W> better, equal = KEq(x, best.value);
  if constexpr (kGreatest) {
    better = KGt(x, best.value);
  } else {
    better = KLt(x, best.value);
  }
  if constexpr (kIsFloat<T>) {
    const Vec<bool, W> x_nan = KIsNan(x), best_nan = KIsNan(best.value);
    better = (better | x_nan) & ~best_nan;
    equal |= x_nan & best_nan;
  }
  better |= equal & KLt(number, best.number);
  better &= active;
  best.value = KSelect(better, x, best.value);
  best.number = KSelect(better, number, best.number);
}
// The same of a number that none before was above.
template <bool kGreatest, class T, int W>
KILN_FN void KUpdateBestLater(KBest<T, W, int>& best, Vec<T, W> x, Vec<int, W> number) {
  Vec<bool, W> better;
  if constexpr (kGreatest) {
    better = ~KLe(x, best.value);
  } else {
    better = ~KGe(x, best.value);
  }
  if constexpr (kIsFloat<T>) better &= KEq(best.value, best.value);
  best.value = KSelect(better, x, best.value);
  best.number = KSelect(better, number, best.number);
}
template <bool kGreatest, class T, int W>
KILN_FN KBest<T, 1> KFoldBest(KBest<T, W> best) {
  KBest<T, 1> result = {KConst<T, 1>(best.value[0]), KConst<long, 1>(best.number[0])};
  KILN_EACH_LANE
  for (int i = 1; i < W; ++i) {
    KUpdateBest<kGreatest>(result, KConst<T, 1>(best.value[i]), KConst<long, 1>(best.number[i]),
                           KConst<bool, 1>(true));
  }
  return result;
}
