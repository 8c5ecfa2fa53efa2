// Goes on where prelude_product.inc.h ends: products of at most 64 rows on the tensor cores of
// sm_90a. How a block's stage of weights comes into shared memory, and how a warp multiplies by it;
// prelude_rows.inc.h has the rest, and says what a Shape is.
//
// Weights are the 16 rows of mma.sync, and rows of the product its 8 columns. The order of k within
// a line is free as long as both operands have the same: a lane reads 16 bytes of a line at a time,
// which are its parts of several instructions. Packed weights are laid out for that instruction:
// those of 8 columns lie together, each lane's after the other's.
#ifdef __NVPTX__

template <class S>
struct KRowsPlan {
  static constexpr int kLine = 128;
  static constexpr bool kPacked = S::kBits == 4;
  static constexpr int kLineB = kPacked ? 64 : kLine;
  static constexpr int kDepth = S::kBoxes * kLineB * 8 / S::kBits;  // of a stage
  static constexpr int kBoxesA = kDepth / 64;
  static constexpr int kBoxBytesA = S::kRows * kLine, kBoxBytesB = S::kColumns * kLineB;
  static constexpr int kBytesA = kBoxesA * kBoxBytesA, kBytesB = S::kBoxes * kBoxBytesB;
  // Then, of packed weights, boxes of 32 columns' scales, lines of one group.
  static constexpr int kGroup = !kPacked ? 1 : S::kGroup < kDepth ? S::kGroup : kDepth;
  static constexpr int kGroups = kDepth / kGroup;
  static constexpr int kScaleBoxes = kPacked ? (S::kColumns + 31) / 32 : 0;
  static constexpr int kScaleBoxBytes = (kGroups * kLine + 1023) / 1024 * 1024;
  static constexpr int kStageBytes = kBytesA + kBytesB + kScaleBoxes * kScaleBoxBytes;
  static constexpr int kWarps = S::kColumns / (16 * S::kOfWarp);  // of a group
  static constexpr int kThreads = 32 * kWarps * S::kGroups;       // that multiply
  // Then sums, those of each group of each block of the cluster for the columns that this block
  // finishes; a pitch by which what lanes write lies in different banks; then barriers.
  static constexpr int kPart = S::kColumns / S::kCluster;
  static constexpr int kPitch = kPart + (S::kBits == 16 ? 8 : 4);
  static constexpr int kSumsAt = S::kStages * kStageBytes;
  static constexpr int kSums = S::kRows * kPitch;  // of a group
  static constexpr int kBarriers = kSumsAt + S::kCluster * S::kGroups * kSums * 4;
};

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

// As KLoadBox, of a tensor with three sides: one request takes less time than several.
KILN_FN void KLoadBoxes(unsigned to, unsigned long map, int x, int y, int z, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// The maps of weights, and of packed ones.
struct KPlainWeights {
  unsigned long map;
};
struct KPackedWeights {
  unsigned long words, scales;
};

// Has those of a stage of the tile come to `to`, and the stage's barrier wait for them and for the
// rows that come with them.
template <class S>
KILN_FN void KLoadWeights(unsigned to, KPlainWeights weights, int tile, int step,
                          unsigned barrier) {
  using P = KRowsPlan<S>;
  KBarrierExpect(barrier, P::kBytesA + P::kBytesB);
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kBoxes; ++i) {
    const int k = (step * S::kBoxes + i) * (P::kLine * 8 / S::kBits);
    KLoadBox(to + i * P::kBoxBytesB, weights.map, k, tile * S::kColumns, barrier);
  }
}
// Lines of 32 words, those of eight columns after each other, then boxes of 32 columns' scales, a
// line for each group. Outside of the tensors all are zeros, and so are weights.
template <class S>
KILN_FN void KLoadWeights(unsigned to, KPackedWeights weights, int tile, int step,
                          unsigned barrier) {
  using P = KRowsPlan<S>;
  const int column = tile * S::kColumns, k = step * P::kDepth;
  KBarrierExpect(barrier, P::kBytesA + P::kBytesB + P::kScaleBoxes * P::kGroups * P::kLine);
  KLoadBoxes(to, weights.words, 0, k / 32, column / 8, barrier);
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kScaleBoxes; ++i) {
    KLoadBox(to + P::kBytesB + i * P::kScaleBoxBytes, weights.scales, 2 * (column + 32 * i),
             k / S::kGroup, barrier);
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
  const int column = group >> 1 | (group & 1) << 2, row = S::kBits == 16 ? column : group;
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
    if constexpr (S::kBits == 16) {
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

// Numbers 8 * kPair and the next of a word, from the lowest bits on, less 8; exact.
template <bool kHalf, int kPair>
KILN_FN unsigned KUnpackPair(unsigned word) {
  // Mantissas of 128 or of 1024.
  constexpr unsigned kOne = kHalf ? 0x64006400 : 0x43004300, kLess = kOne + 0x00080008;
  const unsigned large = (word >> 4 * kPair & 0x000f000f) | kOne;
  unsigned pair;
  if constexpr (kHalf) {
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(large), "r"(kLess));
  } else {
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(large), "r"(kLess));
  }
  return pair;
}
// x * scale + zero of both halves, rounded once.
template <bool kHalf>
KILN_FN unsigned KScalePair(unsigned x, unsigned scale, unsigned zero) {
  if constexpr (kHalf) {
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(scale), "r"(zero));
  } else {
    asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(x) : "r"(scale), "r"(zero));
  }
  return x;
}
// The weights of a word, whose column has that scale and, above it, zero: four pairs.
template <bool kHalf>
KILN_FN KOctet KUnpackWord(unsigned word, unsigned of_column) {
  const unsigned scale = __nvvm_prmt(of_column, of_column, 0x1010);
  const unsigned zero = __nvvm_prmt(of_column, of_column, 0x3232);
  return {KScalePair<kHalf>(KUnpackPair<kHalf, 0>(word), scale, zero),
          KScalePair<kHalf>(KUnpackPair<kHalf, 1>(word), scale, zero),
          KScalePair<kHalf>(KUnpackPair<kHalf, 2>(word), scale, zero),
          KScalePair<kHalf>(KUnpackPair<kHalf, 3>(word), scale, zero)};
}
// kWords of a lane, one after another.
template <int kWords>
KILN_FN KOctet KLoadWords(unsigned from) {
  if constexpr (kWords == 4) return KLoadOctet(from);
  KOctet x = {};
  if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(from)
                 : "memory");
  } else {
    x[0] = KLoadWord(from);
  }
  return x;
}
// The same of packed weights; `number`: of the warp's first eight columns.
template <class S, int N>
KILN_FN void KMultiplyPacked(unsigned rows, unsigned columns, int number, int lane,
                             float (&sums)[S::kOfWarp][N][4]) {
  using P = KRowsPlan<S>;
  // Of eight columns, whose lanes have kWords each, one after another, for every kTiles of k.
  constexpr int kWords = S::kInner / 2, kTiles = 32 * kWords, kLines = P::kDepth / 32;
  const int place = lane * kWords * 4;
  // Where a lane's part of a line of 128 bytes lies.
  const auto within = [](int line, int byte) KILN_INLINE {
    return line * P::kLine + ((byte >> 4 ^ line & 7) << 4) + (byte & 15);
  };
  const int row = lane & 7, piece = lane >> 3;
  unsigned of_low[S::kOfWarp], of_high[S::kOfWarp];  // scale and zero of the group
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kDepth / kTiles; ++i) {
    KOctet words[S::kOfWarp][2];
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kOfWarp; ++j) {
#pragma clang loop unroll(full)
      for (int half = 0; half < 2; ++half) {
        const int line = (number + 2 * j + half) * kLines + i * kWords + place / P::kLine;
        words[j][half] = KLoadWords<kWords>(columns + within(line, place % P::kLine));
      }
    }
#pragma clang loop unroll(full)
    for (int w = 0; w < kWords; ++w) {
      const int k = i * kTiles + w * 32;
      KOctet of_row[N];
#pragma clang loop unroll(full)
      for (int n = 0; n < N; ++n) {
        of_row[n] = KLoadMatrices<false>(rows + k / 64 * P::kBoxBytesA + (n * 8 + row) * P::kLine +
                                         ((k % 64 / 8 + piece ^ row) << 4));
      }
#pragma clang loop unroll(full)
      for (int j = 0; j < S::kOfWarp; ++j) {
        if (k % P::kGroup == 0) {
          const auto load = [&](int eight) KILN_INLINE {
            const int column = (number + eight) * 8 + (lane >> 2);
            return KLoadWord(columns + P::kBytesB + column / 32 * P::kScaleBoxBytes +
                             within(k / P::kGroup, column % 32 * 4));
          };
          of_low[j] = load(2 * j);
          of_high[j] = load(2 * j + 1);
        }
        const KOctet low = KUnpackWord<S::kHalf>(words[j][0][w], of_low[j]);
        const KOctet high = KUnpackWord<S::kHalf>(words[j][1][w], of_high[j]);
#pragma clang loop unroll(full)
        for (int tile = 0; tile < 4; tile += 2) {
          const unsigned of_columns[4] = {low[tile], high[tile], low[tile + 1], high[tile + 1]};
#pragma clang loop unroll(full)
          for (int n = 0; n < N; ++n) {
            KMultiplyPairs<S::kHalf>(sums[j][n], of_columns, of_row[n][tile], of_row[n][tile + 1]);
          }
        }
      }
    }
  }
}

#endif
