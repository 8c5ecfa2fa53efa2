// Goes on where prelude_rows.inc.h ends: attention of few queries, as in decoding. Its time is that
// of reading keys and values once.
//
// A cluster of blocks has all that attends to one head's keys: up to 16 rows, queries of the heads
// that share it. Its blocks take steps of 64 keys in turn, and of a step each of four warps 16. A
// thread of a fifth warp has the tensor memory accelerator bring keys and values into a ring of
// stages, in lines of 128 bytes whose pieces of 16 are permuted. Each warp has a softmax of its
// own; then those of a block become one, in shared memory, and those of the cluster.
//
// Where there is a mask, the fifth warp reads it ahead: a step that it forbids to all rows is not
// read, and of the others it leaves in shared memory what is added to scores. Steps to whose scores
// so little is added that their weights are 0 come last, and only where some row has no others.
// Without a mask, keys and values are read before the block waits for the kernel before it, if that
// cannot write them.
//
// A Shape has: kRows; kWidth of a head, a multiple of 16; kStages; kCluster; kMaskRows: of the
// mask, 0 without one, 1 where it is the same for all rows, else kRows; kHalf: of float16, not
// bfloat16; kEarly: whether nothing before this kernel writes keys and values; kAdds: whether the
// mask has numbers to add, and does not just say which keys count.
#ifdef __NVPTX__

template <class S>
struct KQueriesPlan {
  static constexpr int kKeys = 64, kLine = 128, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kBoxes = (S::kWidth + 63) / 64, kBoxBytes = kKeys * kLine;
  static constexpr int kStageBytes = 2 * kBoxes * kBoxBytes;  // keys, then values
  static constexpr int kHalves = S::kRows > 8 ? 2 : 1;        // of an instruction's 16 rows
  // Of each stage, then: what is added to scores, its step's number, barriers.
  static constexpr int kAddedAt = S::kStages * kStageBytes, kAdded = S::kMaskRows * kKeys;
  static constexpr int kStepsAt = kAddedAt + S::kStages * kAdded * 4;
  static constexpr int kBarriers = (kStepsAt + S::kStages * 4 + 7) / 8 * 8;
  static constexpr int kSeenAt = kBarriers + S::kStages * 16;  // a bit for each row
  // Whoever has stored or read what is added to scores says so itself.
  static constexpr int kFillers = S::kMaskRows > 0 ? 32 : 1;
  static constexpr int kReaders = S::kMaskRows > 0 ? kThreads : kWarps;
  // Where the ring was, once it is read: sums of each warp, those of the block; then of each row
  // its greatest score and its sum of weights, in the same order.
  static constexpr int kPitch = S::kWidth + 4;  // of a row's sums
  static constexpr int kSums = S::kRows * kPitch, kWeightsAt = (kWarps + 1) * kSums * 4;
  static_assert(kWeightsAt + (kWarps + 1) * S::kRows * 8 <= kAddedAt);
};

// A box of a head, `x` along it, from that row on.
KILN_FN void KLoadBoxOfHead(unsigned to, unsigned long map, int x, int row, int head, int batch,
                            unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(map), "r"(x), "r"(row), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}
// From that place of a block of the cluster.
KILN_FN Vec<float, 4> KLoadFourOf(unsigned from, int block) {
  Vec<float, 4> x;
  asm volatile(
      "{.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [at];}"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
      : "r"(from), "r"(block)
      : "memory");
  return x;
}
KILN_FN Vec<float, 2> KLoadTwoOf(unsigned from, int block) {
  Vec<float, 2> x;
  asm volatile(
      "{.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %2, %3;\n"
      "ld.shared::cluster.v2.f32 {%0, %1}, [at];}"
      : "=f"(x[0]), "=f"(x[1])
      : "r"(from), "r"(block)
      : "memory");
  return x;
}
// 2^(x - greatest), 0 of what is forbidden, also where everything is so far.
KILN_FN float KWeight(float x, float greatest) {
  return KMachineExp2(x - (greatest == -__builtin_inff() ? 0 : greatest));
}

// What a mask's number is for powers of 2, finite where it is.
KILN_FN float KAddedToScore(float x) {
  constexpr float kLeast = -1e38f;
  const float of_two = x * 0x1.715476p+0f;
  return of_two < kLeast && x != -__builtin_inff() ? kLeast : of_two;
}
// Where less is added to a score, for powers of 2, its weight is 0 beside others: 2^15.4 apart.
inline constexpr float kLittle = -43281.0f;

// All threads of the cluster; whether some row has seen no key yet to which more was added.
template <class S>
KILN_FN bool KLacksKeys(unsigned seen) {
  unsigned all = 0;
  KMeetWarp();
  if constexpr (S::kCluster > 1) {
    KClusterSync();
  } else {
    KNamedSync(2, KQueriesPlan<S>::kThreads + 32);
  }
#pragma clang loop unroll(full)
  for (int block = 0; block < S::kCluster; ++block) {
    unsigned of_block;
    asm volatile(
        "{.reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %1, %2;\n"
        "ld.shared::cluster.u32 %0, [at];}"
        : "=r"(of_block)
        : "r"(seen), "r"(block)
        : "memory");
    all |= of_block;
  }
  return all != (1u << S::kRows) - 1;
}

// One warp's part: steps `first`, `first` + kCluster, ... of `keys` keys; then one of number -1,
// which ends. added(row, key) gives what the mask adds to a score.
template <class S, class M>
KILN_FN void KLoadSteps(unsigned shared, unsigned long map_k, unsigned long map_v, int batch,
                        int head, int keys, int first, M added) {
  using P = KQueriesPlan<S>;
  constexpr int kOfLane = P::kKeys / 32;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int lane = KThread() & 31, steps = (keys + P::kKeys - 1) / P::kKeys;
  if constexpr (!S::kEarly || S::kMaskRows > 0) KWaitForPrevious();
  int stage = 0, number = 0;
  unsigned parity = 1;
  // Of the stage, whose step has that number.
  const auto give = [&](int step) KILN_INLINE {
    const unsigned barrier = full + 8 * stage;
    if (lane == 0) {
      asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared + P::kStepsAt + 4 * stage), "r"(step)
                   : "memory");
      if (step < 0) {
        KBarrierArrive(barrier);
      } else {
        KBarrierExpect(barrier, P::kStageBytes);
#pragma clang loop unroll(full)
        for (int i = 0; i < 2 * P::kBoxes; ++i) {
          const bool is_key = i < P::kBoxes;
          KLoadBoxOfHead(shared + stage * P::kStageBytes + i * P::kBoxBytes, is_key ? map_k : map_v,
                         (is_key ? i : i - P::kBoxes) * 64, step * P::kKeys, head, batch, barrier);
        }
      }
    } else if (P::kFillers > 1) {
      KBarrierArrive(barrier);
    }
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
    ++number;
  };
  const auto wait = [&]() KILN_INLINE {
    if (number >= S::kStages) KBarrierWait(empty + 8 * stage, parity);
  };
  if constexpr (S::kMaskRows == 0) {
    for (int step = first; step < steps; step += S::kCluster) {
      wait();
      give(step);
    }
  } else {
    // So many steps' masks on their way at a time, where those are small.
    constexpr int kAhead = S::kMaskRows == 1 ? 4 : 1;
    // Those to which enough is added, or, of the others, those to which anything is.
    const auto give_some = [&](bool others) KILN_INLINE {
      for (int step = first; step < steps; step += kAhead * S::kCluster) {
        float ahead[kAhead][S::kMaskRows][kOfLane];
#pragma clang loop unroll(full)
        for (int j = 0; j < kAhead; ++j) {
#pragma clang loop unroll(full)
          for (int row = 0; row < S::kMaskRows; ++row) {
#pragma clang loop unroll(full)
            for (int i = 0; i < kOfLane; ++i) {
              const int key = (step + j * S::kCluster) * P::kKeys + i * 32 + lane;
              ahead[j][row][i] = key < keys ? added(row, key) : -__builtin_inff();
            }
          }
        }
#pragma clang loop unroll(full)
        for (int j = 0; j < kAhead; ++j) {
          bool counts = false, is_any = false;
#pragma clang loop unroll(full)
          for (int row = 0; row < S::kMaskRows; ++row) {
#pragma clang loop unroll(full)
            for (int i = 0; i < kOfLane; ++i) {
              const float x = ahead[j][row][i];
              counts |= !(x <= kLittle);  // a NaN does
              is_any |= x != -__builtin_inff();
            }
          }
          const bool of_first = __nvvm_vote_any_sync(0xffffffff, counts);
          if (others ? of_first || !__nvvm_vote_any_sync(0xffffffff, is_any) : !of_first) continue;
          wait();
#pragma clang loop unroll(full)
          for (int row = 0; row < S::kMaskRows; ++row) {
#pragma clang loop unroll(full)
            for (int i = 0; i < kOfLane; ++i) {
              const unsigned to =
                  shared + P::kAddedAt + 4 * (stage * P::kAdded + row * P::kKeys + i * 32 + lane);
              asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(ahead[j][row][i]) : "memory");
            }
          }
          give(step + j * S::kCluster);
        }
      }
    };
    give_some(false);
    if constexpr (S::kAdds) {
      wait();
      give(-1);
      if (!KLacksKeys<S>(shared + P::kSeenAt)) return;
      give_some(true);
    }
  }
  wait();
  give(-1);
}

// What a warp has of its keys so far: of rows lane / 4 and, with two halves, 8 more.
template <class S>
struct KAttended {
  static constexpr int kHalves = KQueriesPlan<S>::kHalves, kEights = S::kWidth / 8;
  float greatest[kHalves], weights[kHalves];
  float sums[kEights][2 * kHalves];
};

// sums += a b, of 8 or 16 rows.
template <class S, int N>
KILN_FN void KMultiplyRowsOf(float (&sums)[N], const unsigned (&a)[N], unsigned b0, unsigned b1) {
  if constexpr (N == 4) {
    KMultiplyPairs<S::kHalf>(sums, {a[0], a[1], a[2], a[3]}, b0, b1);
  } else {
    float all[4] = {sums[0], sums[1], 0, 0};
    KMultiplyPairs<S::kHalf>(all, {a[0], 0, a[1], 0}, b0, b1);
    sums[0] = all[0];
    sums[1] = all[1];
  }
}

// One warp's 16 keys of a stage, from `key` on.
template <class S>
KILN_FN void KAttendStage(unsigned of_stage, unsigned added, int warp, int lane, int left,
                          float scale,
                          const unsigned (&queries)[S::kWidth / 16][2 * KQueriesPlan<S>::kHalves],
                          KAttended<S>& all) {
  using P = KQueriesPlan<S>;
  constexpr int kHalves = P::kHalves;
  float scores[2][2 * kHalves] = {};
  {
    const int key = warp * 16 + (lane >> 4) * 8 + (lane & 7);
#pragma clang loop unroll(full)
    for (int i = 0; i < S::kWidth / 16; ++i) {
      const int piece = 2 * i + (lane >> 3 & 1);
      const KOctet keys = KLoadMatrices<false>(of_stage + (piece >> 3) * P::kBoxBytes +
                                               key * P::kLine + (((piece ^ key) & 7) << 4));
      KMultiplyRowsOf<S>(scores[0], queries[i], keys[0], keys[1]);
      KMultiplyRowsOf<S>(scores[1], queries[i], keys[2], keys[3]);
    }
  }
  unsigned weights[2 * kHalves];
#pragma clang loop unroll(full)
  for (int half = 0; half < kHalves; ++half) {
    float x[4], greatest = all.greatest[half];
#pragma clang loop unroll(full)
    for (int j = 0; j < 2; ++j) {
      const int at = warp * 16 + j * 8 + 2 * (lane & 3);
      Vec<float, 2> more = {};
      if constexpr (S::kMaskRows > 0) {
        int row = (lane >> 2) + 8 * half;
        if constexpr (S::kMaskRows > 1 && S::kRows % 8 != 0) row = row < S::kRows ? row : 0;
        more = KLoadFloats(added + 4 * ((S::kMaskRows > 1 ? row * P::kKeys : 0) + at));
      }
#pragma clang loop unroll(full)
      for (int e = 0; e < 2; ++e) {
        const float score = __builtin_fmaf(scores[j][2 * half + e], scale, more[e]);
        x[2 * j + e] = S::kMaskRows > 0 || at + e < left ? score : -__builtin_inff();
      }
    }
    greatest = __builtin_fmaxf(
        greatest, __builtin_fmaxf(__builtin_fmaxf(x[0], x[1]), __builtin_fmaxf(x[2], x[3])));
    greatest = KGreatestOfFour(greatest);
    const float before = KWeight(all.greatest[half], greatest);
    all.greatest[half] = greatest;
    all.weights[half] *= before;
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j) {
      x[j] = KWeight(x[j], greatest);
      all.weights[half] += x[j];
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < KAttended<S>::kEights; ++i) {
      all.sums[i][2 * half] *= before;
      all.sums[i][2 * half + 1] *= before;
    }
    weights[half] = KNarrowPair<S::kHalf>(x[0], x[1]);
    weights[kHalves + half] = KNarrowPair<S::kHalf>(x[2], x[3]);
  }
  const int key = warp * 16 + (lane & 15);
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kWidth / 16; ++i) {
    const int piece = 2 * i + (lane >> 4);
    const KOctet values = KLoadMatrices<true>(of_stage + (P::kBoxes + (piece >> 3)) * P::kBoxBytes +
                                              key * P::kLine + (((piece ^ key) & 7) << 4));
    KMultiplyRowsOf<S>(all.sums[2 * i], weights, values[0], values[1]);
    KMultiplyRowsOf<S>(all.sums[2 * i + 1], weights, values[2], values[3]);
  }
}

// Four columns of a row: sums of values, and of weights, relative to the greatest score.
struct KFourOfRow {
  Vec<float, 4> sums;
  float greatest, weights;
};
// The same of all keys from load(i), that of part i.
template <int kParts, class L>
KILN_FN KFourOfRow KOfParts(L load) {
  KFourOfRow parts[kParts], all = {(Vec<float, 4>)(0.0f), -__builtin_inff(), 0};
#pragma clang loop unroll(full)
  for (int i = 0; i < kParts; ++i) {
    parts[i] = load(i);
    all.greatest = __builtin_fmaxf(all.greatest, parts[i].greatest);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kParts; ++i) {
    const float weight = KWeight(parts[i].greatest, all.greatest);
    all.sums += parts[i].sums * weight;
    all.weights += parts[i].weights * weight;
  }
  return all;
}

// scale: of a score, for powers of 2. query(row, column) gives two elements of a query, added(row,
// key) what the mask adds, for powers of 2; store(row, column, four) takes a result.
template <class S, class Q, class M, class G>
KILN_FN void KAttendQueries(unsigned long map_k, unsigned long map_v, int batch, int head, int keys,
                            float scale, Q query, M added, G store) {
  using P = KQueriesPlan<S>;
  constexpr int kHalves = P::kHalves, kFours = S::kWidth / 4;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int warp = KOfFirstLane(KThread() >> 5), lane = KThread() & 31;
  const int rank = KRankInCluster<S::kCluster>();
  KLetNextBegin();
  if (KThread() == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, P::kFillers);
      KBarrierInit(empty + 8 * i, P::kReaders);
    }
    asm volatile("st.shared.u32 [%0], 0;" ::"r"(shared + P::kSeenAt) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp == P::kWarps) {
    KLoadSteps<S>(shared, map_k, map_v, batch, head, keys, rank, added);
    if constexpr (S::kCluster > 1) {
      KMeetWarp();
      KClusterSync();
      KClusterSync();
    }
    return;
  }
  KWaitForPrevious();
  unsigned queries[S::kWidth / 16][2 * kHalves];
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kWidth / 16; ++i) {
#pragma clang loop unroll(full)
    for (int e = 0; e < 2 * kHalves; ++e) {
      const int row = (lane >> 2) + e % kHalves * 8;
      const int column = i * 16 + e / kHalves * 8 + 2 * (lane & 3);
      queries[i][e] = row < S::kRows ? query(row, column) : 0;
    }
  }
  KAttended<S> all = {};
#pragma clang loop unroll(full)
  for (int half = 0; half < kHalves; ++half) all.greatest[half] = -__builtin_inff();
  int stage = 0;
  unsigned parity = 0;
  bool is_last = !S::kAdds;  // what ends now ends all
  while (true) {
    KBarrierWait(full + 8 * stage, parity);
    int step;
    asm volatile("ld.shared.s32 %0, [%1];"
                 : "=r"(step)
                 : "r"(shared + P::kStepsAt + 4 * stage)
                 : "memory");
    if (step >= 0) {
      KAttendStage<S>(shared + stage * P::kStageBytes, shared + P::kAddedAt + 4 * stage * P::kAdded,
                      warp, lane, keys - step * P::kKeys, scale, queries, all);
    } else {
      if (is_last) break;
      is_last = true;
#pragma clang loop unroll(full)
      for (int half = 0; half < kHalves; ++half) {
        const int row = (lane >> 2) + 8 * half;
        // Scores themselves are far less.
        if ((lane & 3) == 0 && row < S::kRows && all.greatest[half] > 1.5f * kLittle) {
          asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared + P::kSeenAt), "r"(1u << row)
                       : "memory");
        }
      }
      if (!KLacksKeys<S>(shared + P::kSeenAt)) break;
    }
    KMeetWarp();
    if (P::kReaders > P::kWarps || lane == 0) KBarrierArrive(empty + 8 * stage);
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // All warps have read the ring.
  KNamedSync(1, P::kThreads);
#pragma clang loop unroll(full)
  for (int half = 0; half < kHalves; ++half) {
    const int row = (lane >> 2) + 8 * half;
    const float weights = KSumOfFour(all.weights[half]);
    if (row >= S::kRows) continue;
#pragma clang loop unroll(full)
    for (int i = 0; i < KAttended<S>::kEights; ++i) {
      KStoreFloats(shared + 4 * (warp * P::kSums + row * P::kPitch + i * 8 + 2 * (lane & 3)),
                   all.sums[i][2 * half], all.sums[i][2 * half + 1]);
    }
    if ((lane & 3) == 0) {
      KStoreFloats(shared + P::kWeightsAt + 8 * (warp * S::kRows + row), all.greatest[half],
                   weights);
    }
  }
  KNamedSync(1, P::kThreads);
  // Forbidden rows give zeros.
  const auto finish = [=](int row, int column, const KFourOfRow& of) KILN_INLINE {
    const float inverse = of.weights > 0 ? 1.0f / of.weights : of.weights == 0 ? 0.0f : of.weights;
    store(row, column, of.sums * inverse);
  };
  for (int i = KThread(); i < S::kRows * kFours; i += P::kThreads) {
    const int row = i / kFours, column = i % kFours * 4;
    const KFourOfRow of = KOfParts<P::kWarps>([=](int part) KILN_INLINE {
      const KOctet four = KLoadOctet(shared + 4 * (part * P::kSums + row * P::kPitch + column));
      const Vec<float, 2> more = KLoadFloats(shared + P::kWeightsAt + 8 * (part * S::kRows + row));
      return KFourOfRow{__builtin_bit_cast(Vec<float, 4>, four), more[0], more[1]};
    });
    if constexpr (S::kCluster == 1) {
      finish(row, column, of);
    } else {
      const unsigned to = shared + 4 * (P::kWarps * P::kSums + row * P::kPitch + column);
      KStoreFloats(to, of.sums[0], of.sums[1]);
      KStoreFloats(to + 8, of.sums[2], of.sums[3]);
      if (column == 0) {
        KStoreFloats(shared + P::kWeightsAt + 8 * (P::kWarps * S::kRows + row), of.greatest,
                     of.weights);
      }
    }
  }
  if constexpr (S::kCluster > 1) {
    KClusterSync();
    for (int i = KThread() * S::kCluster + rank; i < S::kRows * kFours;
         i += P::kThreads * S::kCluster) {
      const int row = i / kFours, column = i % kFours * 4;
      finish(
          row, column, KOfParts<S::kCluster>([=](int part) KILN_INLINE {
            const Vec<float, 2> more =
                KLoadTwoOf(shared + P::kWeightsAt + 8 * (P::kWarps * S::kRows + row), part);
            return KFourOfRow{
                KLoadFourOf(shared + 4 * (P::kWarps * P::kSums + row * P::kPitch + column), part),
                more[0], more[1]};
          }));
    }
    KClusterSync();
  }
}
#endif
