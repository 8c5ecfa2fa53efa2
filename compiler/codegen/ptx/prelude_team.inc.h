// Goes on where the shared prelude ends: the threads of a team, kTeam of them, a power of two. A
// team of up to 32 lies in one warp; a larger one is a block.

#ifdef __NVPTX__
#define KILN_KERNEL __attribute__((nvptx_kernel))
KILN_FN int KThread() {
  return __nvvm_read_ptx_sreg_tid_x();
}
KILN_FN long KBlock() {
  return __nvvm_read_ptx_sreg_ctaid_x();
}
// As much memory as the launch asks for, for each block.
extern __attribute__((address_space(3), aligned(128))) char kiln_shared[];
KILN_FN char* KShared() {
  return (char*)kiln_shared;
}
KILN_FN void KBlockSync() {
  __syncthreads();
}
// The kernel after this one may begin, as far as that waits itself for what this one does.
KILN_FN void KLetNextBegin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Until the kernels before are over, and what they wrote can be read.
KILN_FN void KWaitForPrevious() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
KILN_FN void KWarpSync(unsigned mask) {
  __nvvm_bar_warp_sync(mask);
}
// The value of the thread whose number in the warp differs in the bits of `other`.
KILN_FN int KShuffle(unsigned mask, int x, int other) {
  return __nvvm_shfl_sync_bfly_i32(mask, x, other, 31);
}
// The same number, of which nothing is known: what is computed of it does not stay in registers
// through a loop.
KILN_FN unsigned KOpaque(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}
#endif

template <int kTeam>
KILN_FN unsigned KTeamMask() {
  if constexpr (kTeam >= 32) {
    return 0xffffffffu;
  } else {
    return ((1u << kTeam) - 1u) << (KThread() & 31 & ~(kTeam - 1));
  }
}
// What any thread of the team has stored before, all of them see after.
template <int kTeam>
KILN_FN void KTeamSync() {
  if constexpr (kTeam > 32) {
    KBlockSync();
  } else if constexpr (kTeam > 1) {
    KWarpSync(KTeamMask<kTeam>());
  }
}
template <class T>
KILN_FN T KExchange(unsigned mask, T x, int other) {
  if constexpr (sizeof(T) == 8) {
    struct Words {
      int low, high;
    };
    Words words = __builtin_bit_cast(Words, x);
    words.low = KShuffle(mask, words.low, other);
    words.high = KShuffle(mask, words.high, other);
    return __builtin_bit_cast(T, words);
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, KShuffle(mask, __builtin_bit_cast(int, x), other));
  } else {
    return (T)KShuffle(mask, (int)x, other);
  }
}

// `x` of all threads of the team folded, the same in each thread. merge(x, mask, other) is x folded
// with that of the thread `other`, as KExchange has it. `slots`: 32 X of shared memory, where the
// team is a block.
template <int kTeam, class X, class Merge>
KILN_FN X KAcrossTeam(X x, char* slots, Merge merge) {
  constexpr int kInWarp = kTeam < 32 ? kTeam : 32, kWarps = kTeam / kInWarp;
  const unsigned mask = KTeamMask<kTeam>();
#pragma clang loop unroll(full)
  for (int other = kInWarp / 2; other > 0; other /= 2) x = merge(x, mask, other);
  if constexpr (kWarps > 1) {
    X* const of_warps = (X*)slots;
    KBlockSync();  // what was read there before has been read by all
    if ((KThread() & 31) == 0) of_warps[KThread() >> 5] = x;
    KBlockSync();
    x = of_warps[KThread() & (kWarps - 1)];
#pragma clang loop unroll(full)
    for (int other = kWarps / 2; other > 0; other /= 2) x = merge(x, mask, other);
  }
  return x;
}
template <class Op, class T, int kTeam>
KILN_FN Vec<T, 1> KFoldTeam(Vec<T, 1> x, char* slots) {
  using S = KStored<T>;
  using X = Vec<S, 1>;
  if constexpr (kSameType<S, T>) {
    return KAcrossTeam<kTeam>(x, slots, [](X mine, unsigned mask, int other) KILN_INLINE {
      return Op()(mine, X(KExchange(mask, mine[0], other)));
    });
  } else {
    return KFromStored<T, 1>(
        KAcrossTeam<kTeam>(KToStored(x), slots, [](X mine, unsigned mask, int other) KILN_INLINE {
          const X fetched = X(KExchange(mask, mine[0], other));
          return KToStored(Op()(KFromStored<T, 1>(mine), KFromStored<T, 1>(fetched)));
        }));
  }
}
template <bool kGreatest, class T, int kTeam>
KILN_FN KBest<T, 1> KFoldBestTeam(KBest<T, 1> best, char* slots) {
  struct One {
    KStored<T> value;
    long number;
  };
  const One one = KAcrossTeam<kTeam>(
      One{KToStored(best.value)[0], best.number[0]}, slots,
      [](One a, unsigned mask, int other) KILN_INLINE {
        const One b = {KExchange(mask, a.value, other), KExchange(mask, a.number, other)};
        KBest<T, 1> mine = {KFromStored<T, 1>(Vec<KStored<T>, 1>(a.value)), Vec<long, 1>(a.number)};
        KUpdateBest<kGreatest>(mine, KFromStored<T, 1>(Vec<KStored<T>, 1>(b.value)),
                               Vec<long, 1>(b.number), KConst<bool, 1>(true));
        return One{KToStored(mine.value)[0], mine.number[0]};
      });
  return {KFromStored<T, 1>(Vec<KStored<T>, 1>(one.value)), Vec<long, 1>(one.number)};
}

// body<kTail>(first lane's index, active lanes, turn) for the L lanes from i < end on. kExact: they
// end before `end`.
template <int L, bool kExact, class I, class F>
KILN_FN void KTurn(I i, I end, int turn, F body) {
  if constexpr (kExact) {  // the other body is then not even made
    body.template operator()<false>(i, L, turn);
  } else if (i + L <= end) {
    body.template operator()<false>(i, L, turn);
  } else {
    body.template operator()<true>(i, end - i, turn);
  }
}
// The same over [begin, end), L lanes a thread in a turn. kExact: the length is a multiple of L.
// kTurns: how many turns a thread takes at most, where that is known, and exactly where kWhole;
// else 0.
template <class I, int kTeam, int L, bool kExact, int kTurns, bool kWhole, class F>
KILN_FN void KTeamLoop(int lane, I begin, I end, F body) {
  const I first = begin + lane * L;
  if constexpr (kTurns > 0) {
#pragma clang loop unroll(full)
    for (int k = 0; k < kTurns; ++k) {
      const I i = first + k * kTeam * L;
      if constexpr (kWhole) {
        body.template operator()<false>(i, L, k);
      } else if (i < end) {
        KTurn<L, kExact>(i, end, k, body);
      }
    }
  } else {
#pragma clang loop unroll(disable)
    for (I i = first; i < end; i += kTeam * L) KTurn<L, kExact>(i, end, 0, body);
  }
}
// The same once, for the piece `number` of those that tasks take of [0, end).
template <class I, int kTeam, int L, bool kExact, class F>
KILN_FN void KTaskLanes(int lane, I number, I end, F body) {
  const I i = (number * kTeam + lane) * L;
  if (i < end) KTurn<L, kExact>(i, end, 0, body);
}
