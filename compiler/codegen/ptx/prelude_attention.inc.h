// Goes on where prelude_queries.inc.h ends: attention on the tensor cores of sm_90a, all of it in
// one kernel: result = softmax(scale * queries keys^T + mask) values, row by row.
//
// A block has kGroups warpgroups, each with 64 rows of queries, and one of which a thread loads. It
// takes tiles of kGroups * 64 rows in turn until none is left; a result leaves from where its
// tile's queries were, while the next one's are elsewhere. Keys and values go through a ring of
// kStages stages, kKeys of each at a time, as operands of products do (prelude_product.inc.h). A
// warpgroup has the tensor cores multiply a step's queries with its keys and the weights of the
// step before with their values, and turns the scores into weights while another one does that;
// what it has summed so far shrinks by how much the row's maximum grew.
//
// A Shape has, beside what prelude_scores.inc.h takes: kHead, elements of a row of queries, keys
// and values; kGroups; kStages; kTurns: warpgroups begin to multiply in turn; kPlaces: tiles of
// queries that there is memory for, 1 only where each block has one tile, of its own number;
// Scores, Values: instructions for kKeys and for a row of values; Wait(scores, sums): until they
// are done.
#ifdef __NVPTX__

// The plan of a block's shared memory. Rows lie in boxes of 64 elements, the last one may end in
// zeros.
template <class S>
struct KAttentionPlan {
  static constexpr int kBoxes = (S::kHead + 63) / 64, kLine = 128;
  static constexpr int kRows = S::kRows;
  static_assert(kRows == 64 * S::kGroups);
  static constexpr int kQueryBytes = kBoxes * kRows * kLine, kStepBytes = kBoxes * S::kKeys * kLine;
  static constexpr int kKeysAt = S::kPlaces * kQueryBytes;
  static constexpr int kValuesAt = kKeysAt + S::kStages * kStepBytes;
  static constexpr int kBarriers = kValuesAt + S::kStages * kStepBytes;
  static constexpr int kKeysFull = kBarriers + 16 * S::kPlaces;
  static constexpr int kKeysEmpty = kKeysFull + 8 * S::kStages;
  static constexpr int kRingBarriers = 16 * S::kStages;
  static constexpr int kValuesFull = kKeysFull + kRingBarriers;
  static constexpr int kValuesEmpty = kKeysEmpty + kRingBarriers;
  static constexpr int kTilesAt = kKeysFull + 2 * kRingBarriers;

  // Of the queries of a block's tile number `turn`: where they lie and where it says which tile
  // that is, their barriers, and the parity of the phase in which they are there. A warp's 16 rows
  // of the result take the place of its queries.
  KILN_FN unsigned QueriesAt(unsigned turn) { return turn % S::kPlaces * kQueryBytes; }
  KILN_FN unsigned TileAt(unsigned turn) { return kTilesAt + turn % S::kPlaces * 16; }
  KILN_FN unsigned QueriesFull(unsigned turn) { return kBarriers + turn % S::kPlaces * 16; }
  KILN_FN unsigned QueriesEmpty(unsigned turn) { return QueriesFull(turn) + 8; }
  KILN_FN unsigned QueriesParity(unsigned turn) { return turn / S::kPlaces & 1; }
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

KILN_FN void KStoreTile(unsigned to, const KAttentionTile& tile) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(tile.row), "r"(tile.head),
               "r"(tile.batch), "r"(tile.steps)
               : "memory");
}
KILN_FN KAttentionTile KLoadTile(unsigned from) {
  int row, head, batch, steps;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(row), "=r"(head), "=r"(batch), "=r"(steps)
               : "r"(from)
               : "memory");
  return {KOfFirstLane(row), KOfFirstLane(head), KOfFirstLane(batch), KOfFirstLane(steps)};
}

template <class S>
KILN_FN void KLoadAttention(unsigned shared, const KAttentionMaps& maps,
                            const KAttentionSizes& sizes) {
  using P = KAttentionPlan<S>;
  int stage = 0;
  unsigned parity = 1;
  KNumbersOfBlock<S> numbers = {sizes, (int)__nvvm_read_ptx_sreg_nctaid_x(), (int)KBlock()};
  for (unsigned turn = 0; S::kPlaces > 1 || turn == 0; ++turn) {
    const int number = numbers.Next();
    KBarrierWait(shared + P::QueriesEmpty(turn), P::QueriesParity(turn) ^ 1);
    if (number >= numbers.tiles) {
      KStoreTile(shared + P::TileAt(turn), {0, 0, 0, /*steps=*/0});
      KBarrierArrive(shared + P::QueriesFull(turn));
      break;
    }
    const KAttentionTile tile = KAttentionTileAt<S>(number, sizes);
    KStoreTile(shared + P::TileAt(turn), tile);
    const int of_keys = tile.head / sizes.of_key;
    const auto load = [&](unsigned to, unsigned long map, int rows, int row, int head,
                          unsigned barrier) KILN_INLINE {
      KBarrierExpect(barrier, P::kBoxes * rows * P::kLine);
#pragma clang loop unroll(disable)
      for (int i = 0; i < P::kBoxes; ++i) {
        KLoadBoxOfHead(to + i * rows * P::kLine, map, i * 64, row, head, tile.batch, barrier);
      }
    };
    load(shared + P::QueriesAt(turn), maps.queries, P::kRows, tile.row, tile.head,
         shared + P::QueriesFull(turn));
    for (int step = tile.steps - 1; step >= 0; --step) {
#pragma clang loop unroll(disable)
      for (int i = 0; i < 2; ++i) {  // keys, values
        const unsigned full = shared + P::kKeysFull + i * P::kRingBarriers + 8 * stage;
        KBarrierWait(full + 8 * S::kStages, parity);
        load(shared + P::kKeysAt + (i * S::kStages + stage) * P::kStepBytes,
             i == 0 ? maps.keys : maps.values, S::kKeys, step * S::kKeys, of_keys, full);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  // Whoever multiplies keys of no step waits for them, too.
  KBarrierWait(shared + P::kKeysEmpty + 8 * stage, parity);
  KBarrierArrive(shared + P::kKeysFull + 8 * stage);
}

// 64 rows of what Mma takes first, by the columns; boxes of 64 elements of both lie alike.
template <class Mma, int N>
KILN_FN void KBeginScores(float (&scores)[N], unsigned long rows, unsigned columns) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  Mma::Multiply(scores, rows, KTileDescriptor(columns, 16), 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <class Mma, int N>
KILN_FN void KBeginScores(float (&scores)[N], unsigned rows, unsigned columns) {
  KBeginScores<Mma>(scores, KTileDescriptor(rows, 16), columns);
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
  const unsigned buffer = shared + (group * 4 + warp) * 16 * P::kLine;
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
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kHead / 2; ++i) sums[i] = 0.0f;
  auto of_step = KStepOf<S>(mask);
  KAttentionRows rows = {};
  KAttentionTile tile = {};
  unsigned turn = -1u;                  // of the block's tiles
  int step = 0, stage = 0, before = 0;  // before: the stage of the step before
  unsigned parity = 0, parity_before = 0;
  unsigned long of_queries = 0;  // their descriptor
  bool adds = false;             // the step before to sums of its tile
  if (group == S::kGroups - 1) give_turn();
  // Scores of a step, and sums of the step before, be it of another tile: so either is printed
  // once, which is much for a compiler, and a tile ends while the next one's scores are multiplied.
  // The last scores are of no step.
#pragma clang loop unroll(disable)
  for (;;) {
    const bool is_first = --step < 0;
    const KAttentionTile done = tile;
    bool is_over = false;
    if (is_first) {
      ++turn;
      is_over = S::kPlaces == 1 && turn > 0;
      if (!is_over) {
        KBarrierWait(shared + P::QueriesFull(turn), P::QueriesParity(turn));
        tile = KLoadTile(shared + P::TileAt(turn));
        is_over = tile.steps == 0;
      }
      step = tile.steps - 1;
      of_queries = KTileDescriptor(queries + P::QueriesAt(turn), 16);
    }
    const bool has_sums = !is_first || turn > 0;
    KBarrierWait(shared + P::kKeysFull + 8 * stage, parity);
    take_turn();
    KBeginScores<typename S::Scores>(scores, of_queries,
                                     shared + P::kKeysAt + stage * P::kStepBytes);
    if (has_sums) {
      KBarrierWait(shared + P::kValuesFull + 8 * before, parity_before);
      KBeginSums<typename S::Values>(sums, weights, shared + P::kValuesAt + before * P::kStepBytes,
                                     adds);
    }
    give_turn();
    float factor[2];
    if (is_first) {
      if (turn > 0) KEndRows<S>(rows, lane, sizes, scale, factor, log_sums);
      rows = {tile.batch,     tile.head, tile.row + group * 64 + warp * 16 + (lane >> 2),
              2 * (lane & 3), {},        {}};
      rows.most[0] = rows.most[1] = -__builtin_inff();
      if (!is_over) KLoadMask<S, true>(of_step, rows, step * S::kKeys, sizes, mask);
    } else {
      KLoadMask<S, false>(of_step, rows, step * S::kKeys, sizes, mask);
    }
    S::Wait(scores, sums);
    give_back(shared + P::kKeysEmpty + 8 * stage);
    if (has_sums) give_back(shared + P::kValuesEmpty + 8 * before);
    if (is_first) {
      if (turn > 0) {
        KStoreAttention<S>(sums, factor, lane, done, done.row + group * 64 + warp * 16, maps.result,
                           buffer + P::QueriesAt(turn - 1));
      }
      if (is_over) break;
    }
    KAddMask<S>(scores, of_step, scale);
    const int end = (step + 1) * S::kKeys;
    if ((S::kCausal && end > tile.row + group * 64 + 1) || (!S::kWholeSteps && end > sizes.keys)) {
      KForbid<S>(scores, rows, step * S::kKeys, sizes);
    }
    KWeigh<S>(scores, rows, shrink, scale);
#pragma clang loop unroll(full)
    for (int i = 0; i < S::kHead / 2; ++i) sums[i] *= shrink[i >> 1 & 1];
    KRound<S>(weights, scores);
    if (is_first && turn > 0 && lane == 0) {  // the result has left by now
      KStoresHaveRead();
      KBarrierArrive(shared + P::QueriesEmpty(turn - 1));
    }
    adds = !is_first;
    before = stage;
    parity_before = parity;
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
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
    for (int i = 0; i < S::kPlaces; ++i) {
      KBarrierInit(shared + P::QueriesFull(i), 1);
      KBarrierInit(shared + P::QueriesEmpty(i), S::kGroups * 4);
    }
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
