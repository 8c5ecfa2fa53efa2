// Goes on where prelude_attention.inc.h ends: the gradients of attention on the tensor cores of
// sm_90a. With weights P = exp(scale * queries keys^T - the rows' log sums) and dP = grads
// values^T,
//
//   dS = P * (dP - the rows' dots)   values' gradient: P^T grads   keys' gradient: dS^T queries
//
// and dS keys is added to the queries' gradient, in float32. What `dots` are, the sums over a row
// of its result times its gradient, and the gradients' factor of `scale` are left to other kernels;
// that of the keys has it.
//
// A block has kGroups warpgroups, each with 64 keys of a head, and one of which a warp loads. The
// queries go by, kQueries at a time, with their gradients: products have keys as rows, so that P
// and dS are the next products' operands where they are, in registers. For the queries' gradient
// all of the block's dS meet in shared memory; each warpgroup has 64 x 64 elements of the product,
// which the tensor memory accelerator adds to memory.
//
// A Shape has: kHead; kGroups; kQueries; kStages of queries and their gradients; kCausal: a row
// sees keys up to its own number; kHalf: float16, else bfloat16; Scores, Steps, Sums and
// SharedSums: instructions for kQueries, for 64 columns and, by where the first operand is, for a
// row of keys, and float registers of their results.
#ifdef __NVPTX__

template <class S>
struct KGradientsPlan {
  static constexpr int kBoxes = S::kHead / 64, kLine = 128, kKeys = 64 * S::kGroups;
  static constexpr int kKeyBytes = kBoxes * kKeys * kLine;
  static constexpr int kStepBytes = kBoxes * S::kQueries * kLine;
  static constexpr int kValuesAt = kKeyBytes, kQueriesAt = 2 * kKeyBytes;
  static constexpr int kGradsAt = kQueriesAt + S::kStages * kStepBytes;
  // dS, a box for each warpgroup's keys; the next step's has other memory.
  static constexpr int kSlopesAt = kGradsAt + S::kStages * kStepBytes;
  static constexpr int kSlopeBytes = S::kGroups * S::kQueries * kLine;
  // Of each warpgroup 64 rows of the queries' gradient, in two boxes of 32 columns.
  static constexpr int kSumsAt = kSlopesAt + 2 * kSlopeBytes, kSumBox = 64 * kLine;
  // Log sums of each stage, then dots.
  static constexpr int kRowsAt = kSumsAt + S::kGroups * 2 * kSumBox;
  static constexpr int kRowBytes = S::kQueries * 4;
  static constexpr int kBarriers = kRowsAt + 2 * S::kStages * kRowBytes;
  static constexpr int kKeysFull = kBarriers, kValuesFull = kBarriers + 8;
  static constexpr int kQueriesFull = kBarriers + 16, kQueriesEmpty = kQueriesFull + 8 * S::kStages;
  static constexpr int kGradsFull = kQueriesEmpty + 8 * S::kStages;
  static constexpr int kGradsEmpty = kGradsFull + 8 * S::kStages;
  static constexpr int kSumsFull = kGradsEmpty + 8 * S::kStages;  // of each warpgroup
  static constexpr int kSumsEmpty = kSumsFull + 8 * S::kGroups;
  // Whether a warpgroup has all rows of a step of the queries' gradient, and 64 of its columns.
  static constexpr bool kByColumns = S::kQueries == 64;
  static_assert(kByColumns ? S::kHead == 64 * S::kGroups
                           : S::kHead == 64 && S::kQueries == 64 * S::kGroups);
};

struct KGradientsMaps {
  unsigned long queries, keys, values, grads, of_queries, of_keys, of_values;
};

// Adds a box of float32 to a head's, as KStoreBoxOfHead stores one.
KILN_FN void KAddBoxOfHead(unsigned long map, int x, int row, int head, int batch, unsigned from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group "
      "[%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
      "r"(x), "r"(row), "r"(head), "r"(batch), "r"(from)
      : "memory");
}
KILN_FN void KStoreFloat(unsigned to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
// As KStoreBlocks, turned: a lane's pair is one of a column.
KILN_FN void KStoreTurnedBlocks(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// A block's keys; `first`, the first step of queries that sees one of them.
struct KGradientsTile {
  int row, key_head, batch, first, steps;
};
// Tile `number`: those of some heads together, and of these the ones that most queries see first.
template <class S>
KILN_FN KGradientsTile KGradientsTileAt(int number, const KAttentionSizes& sizes) {
  constexpr int kKeys = KGradientsPlan<S>::kKeys;
  const int tiles = (sizes.keys + kKeys - 1) / kKeys, key_heads = sizes.heads / sizes.of_key;
  const int all_heads = sizes.batches * key_heads, per_group = sizes.group_heads * tiles;
  const int first = number / per_group * sizes.group_heads, rest = number % per_group;
  const int heads = all_heads - first < sizes.group_heads ? all_heads - first : sizes.group_heads;
  const int head = first + (S::kCausal ? rest % heads : rest / tiles);
  const int row = (S::kCausal ? rest / heads : rest % tiles) * kKeys;
  const int all = (sizes.queries + S::kQueries - 1) / S::kQueries;
  const int begin = S::kCausal ? row / S::kQueries : 0;
  return {row, head % key_heads, head / key_heads, begin, all > begin ? all - begin : 0};
}

// A thread's part: boxes of all operands.
template <class S>
KILN_FN void KLoadGradients(unsigned shared, const KGradientsMaps& maps,
                            const KAttentionSizes& sizes, const KGradientsTile& tile) {
  using P = KGradientsPlan<S>;
  const auto load = [&](unsigned to, unsigned long map, int rows, int row, int head,
                        unsigned barrier) KILN_INLINE {
    KBarrierExpect(barrier, P::kBoxes * rows * P::kLine);
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBoxes; ++i) {
      KLoadBoxOfHead(to + i * rows * P::kLine, map, i * 64, row, head, tile.batch, barrier);
    }
  };
  load(shared, maps.keys, P::kKeys, tile.row, tile.key_head, shared + P::kKeysFull);
  int stage = 0;
  unsigned parity = 1;
  for (int i = 0; i < sizes.of_key; ++i) {
    const int head = tile.key_head * sizes.of_key + i;
    for (int step = 0; step < tile.steps; ++step) {
      const int row = (tile.first + step) * S::kQueries;
      const unsigned to = shared + P::kQueriesAt + stage * P::kStepBytes;
      const unsigned barriers = shared + P::kQueriesFull + 8 * stage;
      KBarrierWait(barriers + P::kQueriesEmpty - P::kQueriesFull, parity);
      load(to, maps.queries, S::kQueries, row, head, barriers);
      if (i == 0 && step == 0) {
        load(shared + P::kValuesAt, maps.values, P::kKeys, tile.row, tile.key_head,
             shared + P::kValuesFull);
      }
      KBarrierWait(barriers + P::kGradsEmpty - P::kQueriesFull, parity);
      load(to + P::kGradsAt - P::kQueriesAt, maps.grads, S::kQueries, row, head,
           barriers + P::kGradsFull - P::kQueriesFull);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}
// A warp's part: log sums and dots. Queries past the last one have no weight: their log sum is
// infinite. Whoever has stored or read some arrives for itself: compute-sanitizer does not see what
// a lane does for others.
template <class S, class L, class D>
KILN_FN void KLoadRows(unsigned shared, const KAttentionSizes& sizes, const KGradientsTile& tile,
                       L log_sums, D dots) {
  using P = KGradientsPlan<S>;
  constexpr float kLog2E = 0x1.715476p+0f;
  const int lane = KThread() & 31;
  int stage = 0;
  unsigned parity = 1;
  const auto store = [&](unsigned to, unsigned barriers, int head, int row, auto values,
                         float factor, float outside) KILN_INLINE {
    float found[S::kQueries / 32];
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kQueries / 32; ++j) {
      const int at = row + lane + 32 * j;
      found[j] = at < sizes.queries ? values(tile.batch, head, at) * factor : outside;
    }
    KBarrierWait(barriers + 8 * S::kStages, parity);
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kQueries / 32; ++j) KStoreFloat(to + 128 * j, found[j]);
    KBarrierArrive(barriers);
  };
  for (int i = 0; i < sizes.of_key; ++i) {
    for (int step = 0; step < tile.steps; ++step) {
      const int head = tile.key_head * sizes.of_key + i, row = (tile.first + step) * S::kQueries;
      const unsigned to = shared + P::kRowsAt + stage * P::kRowBytes + lane * 4;
      store(to, shared + P::kQueriesFull + 8 * stage, head, row, log_sums, kLog2E,
            __builtin_inff());
      store(to + S::kStages * P::kRowBytes, shared + P::kGradsFull + 8 * stage, head, row, dots,
            1.0f, 0.0f);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// As KBeginSums, of dS in shared memory and queries: registers do not hold both operands.
template <class S>
KILN_FN void KBeginSumsOfShared(float (&sums)[S::kHead / 2], unsigned slopes, unsigned columns,
                                bool adds) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  S::SharedSums::Multiply(sums, KTileDescriptor(slopes, 16),
                          KTileDescriptor(columns, S::kQueries * 128), adds);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// A warpgroup's part of dS keys.
template <class S>
KILN_FN void KBeginStep(float (&sums)[32], int group, unsigned slopes, unsigned keys) {
  using P = KGradientsPlan<S>;
  const unsigned long a = KTileDescriptor(slopes + (P::kByColumns ? 0 : group * 64 * 128), 16);
  const unsigned long b =
      KTileDescriptor(keys + (P::kByColumns ? group * P::kKeys * 128 : 0), P::kKeys * 128);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  S::Steps::Multiply(sums, a, b, 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Where a thread is: its first key, 8 above its second one, and the first of its queries of a step.
struct KGradientsPlace {
  int key, query;
};
// Scores become weights. kMayEnd: the tile has keys past the last one, or that some query of the
// step, which begins at `first`, does not see.
template <class S, bool kMayEnd>
KILN_FN void KWeighAgain(float (&scores)[S::kQueries / 2], const KGradientsPlace& at, int first,
                         int keys, unsigned log_sums, float factor) {
#pragma clang loop unroll(full)
  for (int j = 0; j < S::kQueries / 8; ++j) {
    const Vec<float, 2> less = KLoadFloats(log_sums + 32 * j + at.query * 4);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
      float& score = scores[4 * j + i];
      score = KMachineExp2(__builtin_fmaf(score, factor, -less[i & 1]));
      if constexpr (kMayEnd) {
        const int key = at.key + 8 * (i >> 1), query = first + 8 * j + at.query + (i & 1);
        score = key < keys && (!S::kCausal || key <= query) ? score : 0.0f;
      }
    }
  }
}
// `grads`, of weights, become those of scores.
template <class S>
KILN_FN void KTurnGrads(float (&grads)[S::kQueries / 2], const float (&weights)[S::kQueries / 2],
                        const KGradientsPlace& at, unsigned dots) {
#pragma clang loop unroll(full)
  for (int j = 0; j < S::kQueries / 8; ++j) {
    const Vec<float, 2> dot = KLoadFloats(dots + 32 * j + at.query * 4);
#pragma clang loop unroll(full)
    for (int i = 0; i < 4; ++i) {
      grads[4 * j + i] = weights[4 * j + i] * (grads[4 * j + i] - dot[i & 1]);
    }
  }
}
template <class S>
KILN_FN void KRoundTurned(unsigned (&factors)[S::kQueries / 4],
                          const float (&from)[S::kQueries / 2]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kQueries / 4; ++i) {
    factors[i] = KNarrowPair<S::kHalf>(from[2 * i], from[2 * i + 1]);
  }
}
// A warp's dS, of 16 keys, to the box of its warpgroup: a line has a query's.
template <class S>
KILN_FN void KStoreSlopes(const unsigned (&slopes)[S::kQueries / 4], int warp, int lane,
                          unsigned box) {
  const int octet = 2 * warp + (lane >> 3 & 1), of_lane = (lane & 7) + (lane >> 4) * 8;
  const unsigned to = box + of_lane * 128 + (octet ^ (lane & 7)) * 16;
#pragma clang loop unroll(full)
  for (int j = 0; j < S::kQueries / 8; j += 2) {
    const unsigned* of = &slopes[2 * j];
    KStoreTurnedBlocks(to + j * 8 * 128, of[0], of[1], of[2], of[3]);
  }
}
// A warp's 16 rows and 64 columns, to two boxes of 32 columns.
template <class S>
KILN_FN void KStoreStep(const float (&sums)[32], int warp, int lane, unsigned boxes) {
  const int of_row = lane >> 2, of_pair = lane & 3;
  const unsigned first =
      boxes + (warp * 16 + of_row) * 128 + (of_pair / 2 ^ of_row) * 16 + of_pair % 2 * 8;
#pragma clang loop unroll(full)
  for (int j = 0; j < 8; ++j) {
    const unsigned to = (first ^ j % 4 * 32) + j / 4 * KGradientsPlan<S>::kSumBox;
    KStoreFloats(to, sums[4 * j], sums[4 * j + 1]);
    KStoreFloats(to + 8 * 128, sums[4 * j + 2], sums[4 * j + 3]);
  }
}
// A thread's part: what a warpgroup has of the queries' gradient, step by step, is added to memory.
template <class S>
KILN_FN void KAddSteps(unsigned shared, int group, const KGradientsMaps& maps,
                       const KAttentionSizes& sizes, const KGradientsTile& tile) {
  using P = KGradientsPlan<S>;
  const unsigned boxes = shared + P::kSumsAt + group * 2 * P::kSumBox;
  const int column = P::kByColumns ? group * 64 : 0;
  unsigned parity = 0;
  for (int i = 0; i < sizes.of_key; ++i) {
    for (int step = 0; step < tile.steps; ++step) {
      const int row = (tile.first + step) * S::kQueries + (P::kByColumns ? 0 : group * 64);
      KBarrierWait(shared + P::kSumsFull + 8 * group, parity);
      parity ^= 1;
#pragma clang loop unroll(full)
      for (int j = 0; j < 2; ++j) {
        KAddBoxOfHead(maps.of_queries, column + 32 * j, row, tile.key_head * sizes.of_key + i,
                      tile.batch, boxes + j * P::kSumBox);
      }
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      KStoresHaveRead();
      KBarrierArrive(shared + P::kSumsEmpty + 8 * group);
    }
  }
}
// A warp's 16 rows of a gradient, of `sums` times `factor`, through shared memory at `buffer`.
template <class S>
KILN_FN void KStoreGradient(const float (&sums)[S::kHead / 2], float factor, int lane, int row,
                            int head, int batch, unsigned long map, unsigned buffer) {
  using P = KGradientsPlan<S>;
  const int to_row = lane & 15, to_octet = lane >> 4;
  const unsigned first = buffer + to_row * P::kLine + (to_octet ^ to_row & 7) * 16;
#pragma clang loop unroll(full)
  for (int j = 0; j < S::kHead / 8; j += 2) {
    const float* of = &sums[4 * j];
    KStoreBlocks((first ^ j % 8 * 16) + j / 8 * P::kKeys * P::kLine,
                 KNarrowPair<S::kHalf>(of[0] * factor, of[1] * factor),
                 KNarrowPair<S::kHalf>(of[2] * factor, of[3] * factor),
                 KNarrowPair<S::kHalf>(of[4] * factor, of[5] * factor),
                 KNarrowPair<S::kHalf>(of[6] * factor, of[7] * factor));
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  KMeetWarp();
  if (lane != 0) return;
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kBoxes; ++i) {
    KStoreBoxOfHead(map, i * 64, row, head, batch, buffer + i * P::kKeys * P::kLine);
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <bool kFirst, class A, class B>
KILN_FN auto& KEither(A& a, B& b) {
  if constexpr (kFirst) {
    return a;
  } else {
    return b;
  }
}
template <bool kFlag>
struct KFlag {
  static constexpr bool kValue = kFlag;
};
// A warpgroup's keys.
template <class S>
KILN_FN void KTakeGradients(unsigned shared, int group, const KGradientsMaps& maps,
                            const KAttentionSizes& sizes, const KGradientsTile& tile, float scale) {
  using P = KGradientsPlan<S>;
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr int kMeeting = 128 * S::kGroups;
  const int warp = KOfFirstLane(KThread() >> 5 & 3);
  const bool may_end = tile.row + P::kKeys > sizes.keys;
  float scores[S::kQueries / 2], grads[S::kQueries / 2];
  [[maybe_unused]] float others[32];
  // Where it has as many, the same registers.
  float(&step_sums)[32] = KEither<P::kByColumns>(grads, others);
  float of_keys[S::kHead / 2], of_values[S::kHead / 2];

  const int steps = tile.steps * sizes.of_key;
  int stage = 0, step = tile.first;
  unsigned parity = 0;
  KBarrierWait(shared + P::kKeysFull, 0);
  const auto take = [&](int number, auto is_last) KILN_INLINE {
    const unsigned base = KOpaque(shared);
    const int lane = KOpaque(KThread()) & 31;
    const unsigned keys = base + group * 64 * P::kLine;
    const KGradientsPlace at = {tile.row + group * 64 + warp * 16 + (lane >> 2), 2 * (lane & 3)};
    const int first = step * S::kQueries;
    const unsigned queries = base + P::kQueriesAt + stage * P::kStepBytes;
    const unsigned of_rows = base + P::kRowsAt + stage * P::kRowBytes;
    const unsigned of_grads = base + P::kGradsAt + stage * P::kStepBytes;
    KBarrierWait(base + P::kGradsFull + 8 * stage, parity);
    KBeginScores<typename S::Scores>(grads, keys + P::kValuesAt, of_grads);
    if (may_end || (S::kCausal && first < tile.row + group * 64 + 63)) {
      KWeighAgain<S, true>(scores, at, first, sizes.keys, of_rows, scale * kLog2E);
    } else {
      KWeighAgain<S, false>(scores, at, first, sizes.keys, of_rows, scale * kLog2E);
    }
    S::Scores::template Wait<0>(grads);
    KTurnGrads<S>(grads, scores, at, of_rows + S::kStages * P::kRowBytes);
    unsigned factors[S::kQueries / 4], slopes[S::kQueries / 4];
    KRoundTurned<S>(factors, scores);
    KRoundTurned<S>(slopes, grads);
    KBeginSums<typename S::Sums>(of_values, factors, of_grads, number > 0);
    const unsigned meeting = base + P::kSlopesAt + (number & 1) * P::kSlopeBytes;
    KStoreSlopes<S>(slopes, warp, lane, meeting + group * S::kQueries * P::kLine);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    KNamedSync(1, kMeeting);
    KBeginStep<S>(step_sums, group, meeting, base);
    S::Sums::template Wait<1>(of_values);
    KBarrierArrive(base + P::kGradsEmpty + 8 * stage);
    KBeginSumsOfShared<S>(of_keys, meeting + group * S::kQueries * P::kLine, queries, number > 0);
    const int next = stage + 1 == S::kStages ? 0 : stage + 1;
    const unsigned next_parity = next == 0 ? parity ^ 1 : parity;
    if constexpr (is_last.kValue) {
      S::Steps::template Wait<1>(step_sums);
    } else {
      KBarrierWait(base + P::kQueriesFull + 8 * next, next_parity);
      KBeginScores<typename S::Scores>(scores, keys, base + P::kQueriesAt + next * P::kStepBytes);
      S::Steps::template Wait<2>(step_sums);
    }
    KBarrierWait(base + P::kSumsEmpty + 8 * group, number & 1 ^ 1);
    KStoreStep<S>(step_sums, warp, lane, base + P::kSumsAt + group * 2 * P::kSumBox);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    KMeetWarp();
    if (lane == 0) KBarrierArrive(base + P::kSumsFull + 8 * group);
    if constexpr (!is_last.kValue) {
      S::Scores::template Wait<0>(scores);
      KBarrierArrive(base + P::kQueriesEmpty + 8 * stage);
    }
    stage = next;
    parity = next_parity;
    if (++step == tile.first + tile.steps) step = tile.first;
  };
  if (steps > 0) {
    KBarrierWait(shared + P::kQueriesFull, 0);
    KBeginScores<typename S::Scores>(scores, shared + group * 64 * P::kLine,
                                     shared + P::kQueriesAt);
    KBarrierWait(shared + P::kValuesFull, 0);
    S::Scores::template Wait<0>(scores);
    for (int number = 0; number + 1 < steps; ++number) take(number, KFlag<false>{});
    take(steps - 1, KFlag<true>{});
    S::Sums::template Wait<0>(of_keys);
    S::Sums::template Wait<0>(of_values);
  } else {
#pragma clang loop unroll(full)
    for (int i = 0; i < S::kHead / 2; ++i) of_keys[i] = of_values[i] = 0.0f;
  }
  // All have read the keys; where they were the gradients leave.
  KNamedSync(1, kMeeting);
  const int row = tile.row + group * 64 + warp * 16, lane = KThread() & 31;
  const unsigned to = shared + (group * 64 + warp * 16) * P::kLine;
  KStoreGradient<S>(of_values, 1.0f, lane, row, tile.key_head, tile.batch, maps.of_values,
                    to + P::kValuesAt);
  KStoreGradient<S>(of_keys, scale, lane, row, tile.key_head, tile.batch, maps.of_keys, to);
  // Shared memory is the block's until then.
  if (lane == 0) KStoresHaveRead();
}

template <class S, class L, class D>
KILN_FN void KGradients(const KGradientsMaps& maps, const KAttentionSizes& sizes, float scale,
                        L log_sums, D dots) {
  using P = KGradientsPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  KLetNextBegin();
  if (KThread() == 0) {
    KBarrierInit(shared + P::kKeysFull, 1);
    KBarrierInit(shared + P::kValuesFull, 1);
    constexpr int kOfFull = 1 + 32, kOfEmpty = 128 * S::kGroups;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(shared + P::kQueriesFull + 8 * i, kOfFull);
      KBarrierInit(shared + P::kQueriesEmpty + 8 * i, kOfEmpty);
      KBarrierInit(shared + P::kGradsFull + 8 * i, kOfFull);
      KBarrierInit(shared + P::kGradsEmpty + 8 * i, kOfEmpty);
    }
    for (int i = 0; i < S::kGroups; ++i) {
      KBarrierInit(shared + P::kSumsFull + 8 * i, 4);
      KBarrierInit(shared + P::kSumsEmpty + 8 * i, 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  KWaitForPrevious();
  KGradientsTile tile = KGradientsTileAt<S>(KBlock(), sizes);
  // Loops of a constant length are unrolled, for which there are no registers.
  tile.steps = (int)KOpaque(tile.steps);
  const int group = KOfFirstLane(KThread() >> 7);
  if (group == S::kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
    const int warp = KOfFirstLane(KThread() >> 5 & 3);
    if (warp == 3) {
      KLoadRows<S>(shared, sizes, tile, log_sums, dots);
    } else if ((KThread() & 31) == 0) {
      if (warp == S::kGroups) {
        KLoadGradients<S>(shared, maps, sizes, tile);
      } else if (warp < S::kGroups) {
        KAddSteps<S>(shared, warp, maps, sizes, tile);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
    KTakeGradients<S>(shared, group, maps, sizes, tile, scale);
  }
}
#endif
