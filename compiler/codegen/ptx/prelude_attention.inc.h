// Goes on where prelude_queries.inc.h ends: attention on the tensor cores of sm_90a, all of it in
// one kernel: result = softmax(scale * queries keys^T + mask) values, row by row.
//
// A block has kGroups warpgroups, each with 64 rows of queries, and one of which a thread loads. It
// takes tiles of kGroups * 64 rows in turn until none is left. Keys and values go through a ring of
// kStages stages, kKeys of each at a time, as operands of products do (prelude_product.inc.h).
// While the tensor cores multiply one step's weights with its values, the warpgroup turns the next
// step's scores into weights; what it has summed so far shrinks by how much the row's maximum grew.
//
// A Shape has, beside what prelude_scores.inc.h takes: kHead, elements of a row of queries, keys
// and values; kGroups; kStages; kTurns: warpgroups begin to multiply in turn; kInPlace: the result
// leaves where the queries came, as there is no other memory; Scores, Values: instructions for
// kKeys and for a row of values, and float registers of their results.
#ifdef __NVPTX__

// The plan of a block's shared memory. Rows lie in boxes of 64 elements, the last one may end in
// zeros.
template <class S>
struct KAttentionPlan {
  static constexpr int kBoxes = (S::kHead + 63) / 64, kLine = 128;
  static constexpr int kRows = S::kRows;
  static_assert(kRows == 64 * S::kGroups);
  static constexpr int kQueryBytes = kBoxes * kRows * kLine, kStepBytes = kBoxes * S::kKeys * kLine;
  static constexpr int kKeysAt = kQueryBytes, kValuesAt = kKeysAt + S::kStages * kStepBytes;
  // A warp's 16 rows of the result lie as those of its queries.
  static constexpr int kResultAt = S::kInPlace ? 0 : kValuesAt + S::kStages * kStepBytes;
  static constexpr int kBarriers =
      kValuesAt + S::kStages * kStepBytes + (S::kInPlace ? 0 : kQueryBytes);
  static constexpr int kQueriesFull = kBarriers, kQueriesEmpty = kBarriers + 8;
  static constexpr int kKeysFull = kBarriers + 16, kKeysEmpty = kKeysFull + 8 * S::kStages;
  static constexpr int kValuesFull = kKeysEmpty + 8 * S::kStages;
  static constexpr int kValuesEmpty = kValuesFull + 8 * S::kStages;
};

struct KAttentionMaps {
  unsigned long queries, keys, values, result;
};

// As KLoadBoxOfHead, back.
KILN_FN void KStoreBoxOfHead(unsigned long map, int x, int row, int head, int batch,
                             unsigned from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(
          map),
      "r"(x), "r"(row), "r"(head), "r"(batch), "r"(from)
      : "memory");
}
KILN_FN void KStoresHaveRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

template <class S>
KILN_FN void KLoadAttention(unsigned shared, const KAttentionMaps& maps,
                            const KAttentionSizes& sizes) {
  using P = KAttentionPlan<S>;
  const int tiles = KAttentionTiles<S>(sizes);
  int stage = 0;
  unsigned parity = 1, of_queries = 1;
  for (int number = KBlock(); number < tiles; number += __nvvm_read_ptx_sreg_nctaid_x()) {
    const KAttentionTile tile = KAttentionTileAt<S>(number, sizes);
    const int of_keys = tile.head / sizes.of_key;
    const auto load = [&](unsigned to, unsigned long map, int rows, int row, int head,
                          unsigned barrier) KILN_INLINE {
      KBarrierExpect(barrier, P::kBoxes * rows * P::kLine);
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBoxes; ++i) {
        KLoadBoxOfHead(to + i * rows * P::kLine, map, i * 64, row, head, tile.batch, barrier);
      }
    };
    KBarrierWait(shared + P::kQueriesEmpty, of_queries);
    of_queries ^= 1;
    load(shared, maps.queries, P::kRows, tile.row, tile.head, shared + P::kQueriesFull);
    for (int step = tile.steps - 1; step >= 0; --step) {
      const unsigned keys = shared + P::kKeysAt + stage * P::kStepBytes;
      const unsigned values = shared + P::kValuesAt + stage * P::kStepBytes;
      KBarrierWait(shared + P::kKeysEmpty + 8 * stage, parity);
      load(keys, maps.keys, S::kKeys, step * S::kKeys, of_keys, shared + P::kKeysFull + 8 * stage);
      KBarrierWait(shared + P::kValuesEmpty + 8 * stage, parity);
      load(values, maps.values, S::kKeys, step * S::kKeys, of_keys,
           shared + P::kValuesFull + 8 * stage);
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// 64 rows of what Mma takes first, by the columns; boxes of 64 elements of both lie alike.
template <class Mma, int N>
KILN_FN void KBeginScores(float (&scores)[N], unsigned rows, unsigned columns) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  Mma::Multiply(scores, KTileDescriptor(rows, 16), KTileDescriptor(columns, 16), 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// What is in registers, 4 for 16 rows of the other operand, times that: adds to `sums`, or begins
// them.
template <class Mma, int N, int M>
KILN_FN void KBeginSums(float (&sums)[N], const unsigned (&factors)[M], unsigned columns,
                        bool adds) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  Mma::Multiply(sums, factors, KTileDescriptor(columns, 4 * M * 128), adds);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// A warp's 16 rows of the result, of `sums` times `factor`, through shared memory at `buffer`.
template <class S>
KILN_FN void KStoreAttention(const float (&sums)[S::kHead / 2], const float (&factor)[2], int lane,
                             const KAttentionTile& tile, int row, unsigned long map,
                             unsigned buffer) {
  using P = KAttentionPlan<S>;
  const int to_row = lane & 15, to_octet = lane >> 4;
  if (lane == 0) KStoresHaveRead();
  KMeetWarp();
#pragma clang loop unroll(full)
  for (int j = 0; j < S::kHead / 8; j += 2) {
    const float* of = &sums[4 * j];
    KStoreBlocks(buffer + j / 8 * P::kRows * P::kLine + to_row * P::kLine +
                     ((j % 8 + to_octet) ^ (to_row & 7)) * 16,
                 KNarrowPair<S::kHalf>(of[0] * factor[0], of[1] * factor[0]),
                 KNarrowPair<S::kHalf>(of[2] * factor[1], of[3] * factor[1]),
                 KNarrowPair<S::kHalf>(of[4] * factor[0], of[5] * factor[0]),
                 KNarrowPair<S::kHalf>(of[6] * factor[1], of[7] * factor[1]));
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  KMeetWarp();
  if (lane != 0) return;
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kBoxes; ++i) {
    KStoreBoxOfHead(map, i * 64, row, tile.head, tile.batch, buffer + i * P::kRows * P::kLine);
  }
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A warpgroup's rows. log_sums(batch, head, row, value) takes the logarithm of a row's sum of
// exponentials.
template <class S, class M, class F>
KILN_FN void KAttend(unsigned shared, int group, const KAttentionMaps& maps,
                     const KAttentionSizes& sizes, float scale, const M& mask, F log_sums) {
  using P = KAttentionPlan<S>;
  constexpr int kMeeting = 256;  // threads: of the warpgroup that waits and of the one before it
  const int warp = KOfFirstLane(KThread() >> 5 & 3), lane = KThread() & 31;
  const unsigned queries = shared + group * 64 * P::kLine;
  const unsigned buffer = shared + P::kResultAt + (group * 4 + warp) * 16 * P::kLine;
  const int tiles = KAttentionTiles<S>(sizes);
  const auto take_turn = [&] KILN_INLINE {
    if constexpr (S::kTurns) KNamedSync(1 + group, kMeeting);
  };
  const auto give_turn = [&] KILN_INLINE {
    if constexpr (S::kTurns) KNamedArrive(1 + (group + 1) % S::kGroups, kMeeting);
  };
  const auto give_back = [&](unsigned barrier) KILN_INLINE {
    if (lane == 0) KBarrierArrive(barrier);
  };
  float scores[S::kKeys / 2], sums[S::kHead / 2], shrink[2];
  unsigned weights[S::kKeys / 4];
  auto of_step = KStepOf<S>(mask);
  int stage = 0;
  unsigned parity = 0, of_queries = 0;
  if (group == S::kGroups - 1) give_turn();
  for (int number = KBlock(); number < tiles; number += __nvvm_read_ptx_sreg_nctaid_x()) {
    const KAttentionTile tile = KAttentionTileAt<S>(number, sizes);
    const int row = tile.row + group * 64 + warp * 16;
    KAttentionRows rows = {tile.batch, tile.head, row + (lane >> 2), 2 * (lane & 3), {}, {}};
    rows.most[0] = rows.most[1] = -__builtin_inff();
    KBarrierWait(shared + P::kQueriesFull, of_queries);
    of_queries ^= 1;
    // The same code for all steps: what is printed once for the first is too much to compile.
#pragma clang loop unroll(full)
    for (int i = 0; i < S::kHead / 2; ++i) sums[i] = 0.0f;
    int before = 0;  // the stage of the step before
    unsigned parity_before = 0;
#pragma clang loop unroll(disable)
    for (int step = tile.steps - 1; step >= 0; --step) {
      const bool is_first = step == tile.steps - 1;
      KBarrierWait(shared + P::kKeysFull + 8 * stage, parity);
      take_turn();
      KBeginScores<typename S::Scores>(scores, queries,
                                       shared + P::kKeysAt + stage * P::kStepBytes);
      if (is_first) {
        // No group of sums: an empty one, for the wait below.
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      } else {
        KBarrierWait(shared + P::kValuesFull + 8 * before, parity_before);
        KBeginSums<typename S::Values>(
            sums, weights, shared + P::kValuesAt + before * P::kStepBytes, step + 2 < tile.steps);
      }
      give_turn();
      if (is_first) {
        KLoadMask<S, true>(of_step, rows, step * S::kKeys, sizes, mask);
      } else {
        KLoadMask<S, false>(of_step, rows, step * S::kKeys, sizes, mask);
      }
      S::Scores::template Wait<1>(scores);
      give_back(shared + P::kKeysEmpty + 8 * stage);
      KAddMask<S>(scores, of_step, scale);
      const int end = (step + 1) * S::kKeys;
      if ((S::kCausal && end > tile.row + group * 64 + 1) || end > sizes.keys) {
        KForbid<S>(scores, rows, step * S::kKeys, sizes);
      }
      KWeigh<S>(scores, rows, shrink, scale);
      S::Values::template Wait<0>(sums);
      if (!is_first) give_back(shared + P::kValuesEmpty + 8 * before);
#pragma clang loop unroll(full)
      for (int i = 0; i < S::kHead / 2; ++i) sums[i] *= shrink[i >> 1 & 1];
      KRound<S>(weights, scores);
      before = stage;
      parity_before = parity;
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if constexpr (!S::kInPlace) give_back(shared + P::kQueriesEmpty);
    KBarrierWait(shared + P::kValuesFull + 8 * before, parity_before);
    KBeginSums<typename S::Values>(sums, weights, shared + P::kValuesAt + before * P::kStepBytes,
                                   tile.steps > 1);
    float factor[2];
    KEndRows<S>(rows, lane, sizes, scale, factor, log_sums);
    S::Values::template Wait<0>(sums);
    give_back(shared + P::kValuesEmpty + 8 * before);
    KStoreAttention<S>(sums, factor, lane, tile, row, maps.result, buffer);
    if constexpr (S::kInPlace) {
      if (lane == 0) KStoresHaveRead();
      give_back(shared + P::kQueriesEmpty);
    }
  }
  // Shared memory is the block's until then.
  if (lane == 0) KStoresHaveRead();
}

template <class S, class M, class F>
KILN_FN void KAttention(const KAttentionMaps& maps, const KAttentionSizes& sizes, float scale,
                        const M& mask, F log_sums) {
  using P = KAttentionPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  KLetNextBegin();
  if (KThread() == 0) {
    KBarrierInit(shared + P::kQueriesFull, 1);
    KBarrierInit(shared + P::kQueriesEmpty, S::kGroups * 4);
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(shared + P::kKeysFull + 8 * i, 1);
      KBarrierInit(shared + P::kKeysEmpty + 8 * i, S::kGroups * 4);
      KBarrierInit(shared + P::kValuesFull + 8 * i, 1);
      KBarrierInit(shared + P::kValuesEmpty + 8 * i, S::kGroups * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  KWaitForPrevious();
  const int group = KOfFirstLane(KThread() >> 7);
  if (group == S::kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kGroups == 2 ? 24 : 32));
    if (KThread() == S::kGroups * 128) KLoadAttention<S>(shared, maps, sizes);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kGroups == 2 ? 240 : 160));
    KAttend<S>(shared, group, maps, sizes, scale, mask, log_sums);
  }
}
#endif
