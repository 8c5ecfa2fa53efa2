// Goes on where prelude_product.inc.h ends: products of at most 64 rows on the tensor cores of
// sm_90a, as in decoding. Their time is that of reading the second operand, the weights, once.
//
// A block has some warps that multiply and one of which a thread loads. It takes tiles of columns
// in turn until none is left. A stage of the ring holds kBoxes boxes of 128 bytes of each of the
// tile's columns and the same depth of all rows of the first operand. The ring is filled with
// weights before the block waits for the kernel before it, which may still run: that writes no
// weights.
//
// Weights are the 16 rows of mma.sync, and rows of the product its 8 columns. The order of k within
// a line is free as long as both operands have the same: a lane reads 16 bytes of a line at a time,
// which are its parts of several instructions.
//
// A Shape has: kRows, a multiple of 8; kColumns of a tile, a multiple of 16 * kOfWarp; kOfWarp:
// times 16 columns, that a warp multiplies; kGroups of warps, which take stages in turn and add up
// their sums; kBoxes; kStages, a multiple of kGroups; kCluster: blocks that share a tile by its
// depth, each of which finishes a part of the columns; kResults: how many results of 16 bits a sum
// has; kHalf: the first operand is of float16, not bfloat16; kBytes of a weight: 2, of the same
// type, or 1: an integer.
#ifdef __NVPTX__

template <class S>
struct KRowsPlan {
  static constexpr int kLine = 128;
  static constexpr int kDepth = S::kBoxes * kLine / S::kBytes;  // of a stage
  static constexpr int kBoxesA = kDepth / 64;
  static constexpr int kBoxBytesA = S::kRows * kLine, kBoxBytesB = S::kColumns * kLine;
  static constexpr int kBytesA = kBoxesA * kBoxBytesA;
  static constexpr int kStageBytes = kBytesA + S::kBoxes * kBoxBytesB;
  static constexpr int kWarps = S::kColumns / (16 * S::kOfWarp);  // of a group
  static constexpr int kThreads = 32 * kWarps * S::kGroups;       // that multiply
  // Then sums, those of each group of each block of the cluster for the columns that this block
  // finishes; a pitch by which what lanes write lies in different banks; then barriers.
  static constexpr int kPart = S::kColumns / S::kCluster;
  static constexpr int kPitch = kPart + (S::kBytes == 2 ? 8 : 4);
  static constexpr int kSumsAt = S::kStages * kStageBytes;
  static constexpr int kSums = S::kRows * kPitch;  // of a group
  static constexpr int kBarriers = kSumsAt + S::kCluster * S::kGroups * kSums * 4;
};

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

// sums += a b for 16 columns and 8 rows of the product, 16 deep.
template <bool kHalf>
KILN_FN void KMultiplyPairs(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
// The signed bytes 2 * kPair and 2 * kPair + 1 of a word as two numbers of 16 bits; exact.
template <bool kHalf, int kPair>
KILN_FN unsigned KWidenPair(unsigned bytes) {
  constexpr unsigned kApart = kPair == 0 ? 0x4140 : 0x4342;
  unsigned pair;
  if constexpr (kHalf) {
    // Mantissas of 1024, less that and what makes them unsigned.
    constexpr unsigned kLess = 0x64806480;
    const unsigned large = __nvvm_prmt(bytes ^ 0x80808080, 0x64646464, kApart);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(large), "r"(kLess));
  } else {
    // Seven bits are the mantissa of 128, and the eighth is what to take off, 128 or 256.
    const unsigned apart = __nvvm_prmt(bytes, 0, kApart);
    const unsigned large = (apart & 0x007f007f) | 0x43004300;
    const unsigned less = (apart & 0x00800080) | 0x43004300;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(large), "r"(less));
  }
  return pair;
}

// One thread's part of it all. Blocks begin at different depths, so that they do not all read the
// same of the first operand at a time.
template <class S>
KILN_FN void KLoadRows(unsigned shared, unsigned long map_a, unsigned long map_b, int tiles,
                       int first, int apart, int first_step, int steps) {
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
    KBarrierExpect(full + 8 * stage, P::kStageBytes);
#pragma clang loop unroll(full)
    for (int i = 0; i < S::kBoxes; ++i) {
      const int k = (step_at(step) * S::kBoxes + i) * (P::kLine / S::kBytes);
      KLoadBox(to + i * P::kBoxBytesB, map_b, k, tile * S::kColumns, full + 8 * stage);
    }
  };
  const auto load_rows = [=](int stage, int step) KILN_INLINE {
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBoxesA; ++i) {
      const int k = (step_at(step) * P::kBoxesA + i) * 64;
      KLoadBox(shared + stage * P::kStageBytes + i * P::kBoxBytesA, map_a, k, 0, full + 8 * stage);
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

// sums += what a warp multiplies of a stage, whose columns begin at `columns` and rows at `rows`.
template <class S, int N>
KILN_FN void KMultiplyStage(unsigned rows, unsigned columns, int lane,
                            float (&sums)[S::kOfWarp][N][4]) {
  using P = KRowsPlan<S>;
  // Lanes of a group of four read parts of one line. Which lines the eight groups have makes the
  // 16 bytes of each eight lanes lie in all banks.
  const int group = lane >> 2, part = lane & 3;
  const int column = group >> 1 | (group & 1) << 2, row = S::kBytes == 2 ? column : group;
#pragma clang loop unroll(full)
  for (int i = 0; i < 2 * S::kBoxes; ++i) {
    const int box = i / 2, half = i % 2;
    const unsigned at =
        columns + box * P::kBoxBytesB + column * P::kLine + (((half * 4 + part) ^ column) << 4);
    KOctet low[S::kOfWarp], high[S::kOfWarp];
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kOfWarp; ++j) {
      low[j] = KLoadOctet(at + j * 16 * P::kLine);
      high[j] = KLoadOctet(at + (j * 16 + 8) * P::kLine);
    }
    if constexpr (S::kBytes == 2) {
#pragma clang loop unroll(full)
      for (int n = 0; n < N; ++n) {
        const KOctet of_row = KLoadOctet(rows + box * P::kBoxBytesA + (n * 8 + row) * P::kLine +
                                         (((half * 4 + part) ^ row) << 4));
#pragma clang loop unroll(full)
        for (int j = 0; j < S::kOfWarp; ++j) {
#pragma clang loop unroll(full)
          for (int k = 0; k < 4; k += 2) {
            const unsigned of_columns[4] = {low[j][k], high[j][k], low[j][k + 1], high[j][k + 1]};
            KMultiplyPairs<S::kHalf>(sums[j][n], of_columns, of_row[k], of_row[k + 1]);
          }
        }
      }
    } else {
#pragma clang loop unroll(full)
      for (int quarter = 0; quarter < 2; ++quarter) {
        KOctet of_row[N];
#pragma clang loop unroll(full)
        for (int n = 0; n < N; ++n) {
          of_row[n] = KLoadOctet(rows + i * P::kBoxBytesA + (n * 8 + row) * P::kLine +
                                 (((2 * part + quarter) ^ row) << 4));
        }
#pragma clang loop unroll(full)
        for (int j = 0; j < S::kOfWarp; ++j) {
#pragma clang loop unroll(full)
          for (int k = 0; k < 2; ++k) {
            const unsigned x = low[j][2 * quarter + k], y = high[j][2 * quarter + k];
            const unsigned of_columns[4] = {KWidenPair<S::kHalf, 0>(x), KWidenPair<S::kHalf, 0>(y),
                                            KWidenPair<S::kHalf, 1>(x), KWidenPair<S::kHalf, 1>(y)};
#pragma clang loop unroll(full)
            for (int n = 0; n < N; ++n) {
              KMultiplyPairs<S::kHalf>(sums[j][n], of_columns, of_row[n][2 * k],
                                       of_row[n][2 * k + 1]);
            }
          }
        }
      }
    }
  }
}

// The part of warp `warp` of those that multiply. finish(row, column, whether it is inside, sums,
// results) makes results of two columns, of 16 bits, and stores others; store(number, row, column,
// octet) has eight columns of those of 16 bits. The number of columns is a multiple of 8.
template <class S, class F, class G>
KILN_FN void KMultiplyRows(unsigned shared, int rows, int columns, int warp, int tiles, int first,
                           int apart, int steps, F finish, G store) {
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
      KMultiplyStage<S>(of_stage, of_stage + P::kBytesA + of_group * P::kLine, lane, sums);
      KMeetWarp();
      if (lane == 0) KBarrierArrive(empty + 8 * at);
    }
    stage += steps;
    parity ^= stage / S::kStages & 1;
    stage %= S::kStages;

    // Other blocks of the cluster have begun.
    if constexpr (S::kCluster > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    const int of_lane = lane >> 2, pair = lane & 3;
    const int line = of_lane >> 1 | (of_lane & 1) << 2;
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kOfWarp; ++j) {
#pragma clang loop unroll(full)
      for (int n = 0; n < kBlocks; ++n) {
#pragma clang loop unroll(full)
        for (int e = 0; e < 4; ++e) {
          const int column = of_group + j * 16 + (e >> 1) * 8 + line;
          const int row = n * 8 + (S::kBytes == 2 ? pair + 4 * (e & 1) : 2 * pair + (e & 1));
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
      unsigned results[4][S::kResults > 0 ? S::kResults : 1];
#pragma clang loop unroll(full)
      for (int e = 0; e < 4; ++e) {
        finish(row, column + 2 * e, true, Vec<float, 2>{all[2 * e], all[2 * e + 1]}, results[e]);
      }
#pragma clang loop unroll(full)
      for (int number = 0; number < S::kResults; ++number) {
        store(
            number, row, column,
            KOctet{results[0][number], results[1][number], results[2][number], results[3][number]});
      }
    }
    if constexpr (S::kCluster == 1) KNamedSync(1, P::kThreads);
  }
}

// Clusters of several blocks have one tile each.
template <class S, class F, class G>
KILN_FN void KProductOfRows(unsigned long map_a, unsigned long map_b, int rows, int columns,
                            int depth, F finish, G store) {
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
    KMultiplyRows<S>(shared, rows, columns, warp, tiles, first, apart, steps, finish, store);
  } else {
    if (KThread() == P::kThreads) {
      KLoadRows<S>(shared, map_a, map_b, tiles, first, apart, first_step, steps);
    }
    if constexpr (S::kCluster > 1) {
      KMeetWarp();
      asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
      KClusterSync();
    }
  }
}
#endif
