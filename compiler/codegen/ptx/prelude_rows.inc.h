// Goes on where prelude_weights.inc.h ends: products of at most 64 rows on the tensor cores of
// sm_90a, as in decoding. Their time is that of reading the second operand, the weights, once.
//
// A block has some warps that multiply and one of which a thread loads. It takes tiles of columns
// in turn until none is left. A stage of the ring holds kBoxes boxes of 128 bytes of each of the
// tile's columns and the same depth of all rows of the first operand. The ring is filled with
// weights before the block waits for the kernel before it, which may still run: that writes no
// weights.
//
// A Shape has: kRows, a multiple of 8; kColumns of a tile, a multiple of 16 * kOfWarp; kOfWarp:
// times 16 columns, that a warp multiplies; kGroups of warps, which take stages in turn and add up
// their sums; kBoxes; kStages, a multiple of kGroups; kCluster: blocks that share a tile by its
// depth, each of which finishes a part of the columns; kShort and kRagged, which is false, as
// prelude_sums.inc.h has them; kHalf: the first operand is of float16, not bfloat16; kBits of a
// weight: 16, of the same type, 8: an integer, or 4: packed, of kInner tiles of a lane in groups of
// kGroup (compiler/ir/packed_weights.h).
#ifdef __NVPTX__

// To that place of a block of the cluster.
template <int kCluster>
KILN_FN void KStoreShared(unsigned to, int block, float x) {
  if constexpr (kCluster > 1) {
    asm volatile(
        "{.reg .b32 at;\n"
        "mapa.shared::cluster.u32 at, %0, %1;\n"
        "st.shared::cluster.f32 [at], %2;}" ::"r"(to),
        "r"(block), "f"(x)
        : "memory");
  } else {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }
}

// One thread's part of it all. Blocks begin at different depths, so that they do not all read the
// same of the first operand at a time.
template <class S, class W>
KILN_FN void KLoadRows(unsigned shared, unsigned long map_a, W weights, int tiles, int first,
                       int apart, int first_step, int steps) {
  using P = KRowsPlan<S>;
  constexpr int kBetween = 5;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  if (steps <= 0 || first >= tiles) return;
  const int turned = first * kBetween % steps;
  const auto step_at = [=](int step) KILN_INLINE {
    const int at = step + turned;
    return first_step + (at < steps ? at : at - steps);
  };
  const auto load_weights = [=](int stage, int tile, int step) KILN_INLINE {
    const unsigned to = shared + stage * P::kStageBytes + P::kBytesA;
    KLoadWeights<S>(to, weights, tile, step_at(step), full + 8 * stage);
  };
  const auto load_rows = [=](int stage, int step) KILN_INLINE {
    const unsigned to = shared + stage * P::kStageBytes;
    const int first_box = step_at(step) * P::kBoxesA;
    if constexpr (P::kPacked) {
      KLoadBoxes(to, map_a, 0, 0, first_box, full + 8 * stage);
    } else {
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBoxesA; ++i) {
        KLoadBox(to + i * P::kBoxBytesA, map_a, (first_box + i) * 64, 0, full + 8 * stage);
      }
    }
  };
  const int all = (tiles - first + apart - 1) / apart * steps;
  const int before = all < S::kStages ? all : S::kStages;
  int tile = first, step = 0;
  const auto advance = [&]() KILN_INLINE {
    if (++step < steps) return;
    step = 0;
    tile += apart;
  };
  for (int i = 0; i < before; ++i) {
    load_weights(i, tile, step);
    advance();
  }
  KWaitForPrevious();
  for (int i = 0, of_tile = 0; i < before; ++i) {
    load_rows(i, of_tile);
    if (++of_tile == steps) of_tile = 0;
  }
  int stage = 0;
  unsigned parity = 0;
  for (int i = before; i < all; ++i) {
    KBarrierWait(empty + 8 * stage, parity);
    load_weights(stage, tile, step);
    load_rows(stage, step);
    advance();
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// The part of warp `warp` of those that multiply, with a KWork of prelude_sums.inc.h. The number of
// columns is a multiple of 8.
template <class S, class F>
KILN_FN void KMultiplyRows(unsigned shared, int rows, int columns, int warp, int tiles, int first,
                           int apart, int steps, const F& work) {
  using P = KRowsPlan<S>;
  constexpr int kBlocks = S::kRows / 8, kOctets = P::kPart / 8;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int lane = KThread() & 31, thread = KThread();
  const int group = warp / P::kWarps, of_group = warp % P::kWarps * S::kOfWarp * 16;
  const int rank = KRankInCluster<S::kCluster>();
  int stage = 0;  // that the next tile begins at
  unsigned parity = 0;
  for (int tile = first; tile < tiles; tile += apart) {
    float sums[S::kOfWarp][kBlocks][4] = {};
    for (int step = group; step < steps; step += S::kGroups) {
      int at = stage + step % S::kStages;
      unsigned phase = parity ^ (step / S::kStages & 1);
      if (at >= S::kStages) {
        at -= S::kStages;
        phase ^= 1;
      }
      const unsigned of_stage = shared + at * P::kStageBytes;
      KBarrierWait(full + 8 * at, phase);
      if constexpr (P::kPacked) {
        KMultiplyPacked<S>(of_stage, of_stage + P::kBytesA, of_group / 8, lane, sums);
      } else {
        KMultiplyStage<S>(of_stage, of_stage + P::kBytesA + of_group * P::kLine, lane, sums);
      }
      KMeetWarp();
      if (lane == 0) KBarrierArrive(empty + 8 * at);
    }
    stage += steps;
    parity ^= stage / S::kStages & 1;
    stage %= S::kStages;

    // Other blocks of the cluster have begun.
    if constexpr (S::kCluster > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    const int of_lane = lane >> 2, pair = lane & 3;
    const int line = P::kPacked ? of_lane : of_lane >> 1 | (of_lane & 1) << 2;
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kOfWarp; ++j) {
#pragma clang loop unroll(full)
      for (int n = 0; n < kBlocks; ++n) {
#pragma clang loop unroll(full)
        for (int e = 0; e < 4; ++e) {
          const int column = of_group + j * 16 + (e >> 1) * 8 + line;
          const int row = n * 8 + (S::kBits == 16 ? pair + 4 * (e & 1) : 2 * pair + (e & 1));
          const int to = column / P::kPart;
          const int place =
              (rank * S::kGroups + group) * P::kSums + row * P::kPitch + column - to * P::kPart;
          if (row < rows) {
            KStoreShared<S::kCluster>(shared + P::kSumsAt + 4 * place, to, sums[j][n][e]);
          }
        }
      }
    }
    if constexpr (S::kCluster > 1) {
      KClusterSync();
    } else {
      KNamedSync(1, P::kThreads);
    }
    for (int i = thread; i < rows * kOctets; i += P::kThreads) {
      const int row = i / kOctets, octet = i - row * kOctets;
      const int column = tile * S::kColumns + rank * P::kPart + 8 * octet;
      if (column >= columns) continue;
      float all[8] = {};
#pragma clang loop unroll(full)
      for (int part = 0; part < S::kCluster * S::kGroups; ++part) {
        const unsigned from =
            shared + P::kSumsAt + 4 * (part * P::kSums + row * P::kPitch + 8 * octet);
#pragma clang loop unroll(full)
        for (int half = 0; half < 2; ++half) {
          const KOctet four = KLoadOctet(from + 16 * half);
#pragma clang loop unroll(full)
          for (int e = 0; e < 4; ++e) {
            all[4 * half + e] += __builtin_bit_cast(float, (unsigned)four[e]);
          }
        }
      }
      struct {
        decltype(work.begin(work.of_columns(0), Vec<float, 2>{})) of[4];
      } pairs;
#pragma clang loop unroll(full)
      for (int e = 0; e < 4; ++e) {
        pairs.of[e] =
            work.begin(work.of_columns(column + 2 * e), Vec<float, 2>{all[2 * e], all[2 * e + 1]});
      }
      using Waiting = decltype(KWaiting<S>(shared, row, column));
      const auto store = work.finish(work.of_place(row, column), row, column, true,
                                     __builtin_bit_cast(Waiting, pairs));
      store();
    }
    if constexpr (S::kCluster == 1) KNamedSync(1, P::kThreads);
  }
}

// Clusters of several blocks have one tile each.
template <class S, class W, class F>
KILN_FN void KProductOfRows(unsigned long map_a, W weights, int rows, int columns, int depth,
                            const F& work) {
  using P = KRowsPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const int tiles = (columns + S::kColumns - 1) / S::kColumns;
  const int all = (depth + P::kDepth - 1) / P::kDepth;
  const int of_block = (all + S::kCluster - 1) / S::kCluster;
  const int first_step = KRankInCluster<S::kCluster>() * of_block;
  const int steps = all - first_step < of_block ? all - first_step : of_block;
  const int first = (int)KBlock() / S::kCluster;
  const int apart = (int)__nvvm_read_ptx_sreg_nctaid_x() / S::kCluster;
  const int warp = KOfFirstLane(KThread() >> 5);
  KLetNextBegin();
  if (KThread() == 0) {
    const unsigned full = shared + P::kBarriers;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, 1);
      KBarrierInit(full + 8 * (S::kStages + i), P::kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (S::kCluster > 1) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  __syncthreads();
  if (warp < P::kThreads / 32) {
    KWaitForPrevious();
    KMultiplyRows<S>(shared, rows, columns, warp, tiles, first, apart, steps, work);
  } else {
    if (KThread() == P::kThreads) {
      KLoadRows<S>(shared, map_a, weights, tiles, first, apart, first_step, steps);
    }
    if constexpr (S::kCluster > 1) {
      KMeetWarp();
      asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
      KClusterSync();
    }
  }
}
#endif
