// Goes on where prelude_team.inc.h ends: matrix products on the tensor cores of sm_90a.
//
// A block has two warpgroups that multiply and one of which a thread loads. It takes tiles of the
// result in turn until none is left. Tiles of both operands, kStep deep, go through a ring of
// stages: the loader asks the tensor memory accelerator for them and the stage's barrier `full`
// counts their bytes; each warp arrives at its `empty` once it has read them. Operands lie in
// shared memory in lines of 128 bytes, whose pieces of 16 are permuted as the hardware does it
// ("128-byte swizzle"), so that nothing meets in a bank.
//
// A Shape has: kRows, kColumns of a tile; kStages; kTurns: each multiplying warpgroup has tiles of
// its own, and one stores while the other multiplies, else both share a tile by its rows;
// kTurnedA, kTurnedB: the operand is contiguous along the tile's side, not along the depth;
// kManyRegisters: sums leave few for anything else; Mma: the instruction for kColumns, and float
// registers of its result.
#ifdef __NVPTX__

struct alignas(64) KTensorMap {
  unsigned long words[16];
};

KILN_FN void KBarrierInit(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
KILN_FN void KBarrierExpect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
KILN_FN void KBarrierArrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of that parity is over.
KILN_FN void KBarrierWait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// A box of the tensor at element (x, y), x along what is contiguous; zeros outside of it.
KILN_FN void KLoadBox(unsigned to, unsigned long map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
KILN_FN void KNamedSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KILN_FN void KNamedArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KILN_FN int KOfFirstLane(int x) {
  return __nvvm_shfl_sync_idx_i32(0xffffffff, x, 0, 31);
}
// How the tensor cores find a tile in shared memory; `leading`: bytes between blocks of 64
// elements along the tile's side, where that is contiguous.
KILN_FN unsigned long KTileDescriptor(unsigned address, unsigned leading) {
  constexpr unsigned long kStride = 1024, kSwizzled = 1ul << 62;
  return (address & 0x3ffff) >> 4 | (unsigned long)(leading >> 4) << 16 | (kStride >> 4) << 32 |
         kSwizzled;
}

struct KTile {
  int row, column;
};
// Of tile `number`: those of a few rows together, so that what runs at a time shares operands in
// the second-level cache.
template <class Shape>
KILN_FN KTile KTileAt(int number, int rows, int columns) {
  constexpr int kGroup = 1024 / Shape::kRows;
  const int per_group = kGroup * columns, group = number / per_group, first = group * kGroup;
  const int in_group = rows - first < kGroup ? rows - first : kGroup;
  const int rest = number - group * per_group;
  return {(first + rest % in_group) * Shape::kRows, rest / in_group * Shape::kColumns};
}

template <class S>
struct KProductPlan {
  static constexpr int kStep = 64, kLine = 128;  // bytes of a step's elements
  static constexpr int kBytesA = S::kRows * kLine, kBytesB = S::kColumns * kLine;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kBarriers = S::kStages * kStageBytes;
  // Of 64 rows, that a warpgroup multiplies in each step.
  static constexpr int kBlocks = S::kTurns ? S::kRows / 64 : S::kRows / 128;
  // What a warp finishes at a time: 16 rows by kChunk columns, or fewer at the tile's end.
  static constexpr int kChunk = S::kManyRegisters ? 32 : 64;
  static constexpr int kChunks = (S::kColumns + kChunk - 1) / kChunk, kPieces = kBlocks * kChunks;
};

// One thread's part: all boxes of all tiles of the block.
template <class S>
KILN_FN void KLoadTiles(unsigned shared, unsigned long map_a, unsigned long map_b, int tile_rows,
                        int tile_columns, int steps) {
  using P = KProductPlan<S>;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int blocks = __nvvm_read_ptx_sreg_nctaid_x();
  int stage = 0;
  unsigned parity = 1;
  for (int number = (int)KBlock(); number < tile_rows * tile_columns; number += blocks) {
    const KTile tile = KTileAt<S>(number, tile_rows, tile_columns);
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes, b = a + P::kBytesA;
      const unsigned barrier = full + 8 * stage;
      const int k = step * P::kStep;
      KBarrierWait(empty + 8 * stage, parity);
      KBarrierExpect(barrier, P::kStageBytes);
      if constexpr (S::kTurnedA) {
#pragma clang loop unroll(full)
        for (int i = 0; i < S::kRows; i += 64) {
          KLoadBox(a + i * P::kLine, map_a, tile.row + i, k, barrier);
        }
      } else {
        KLoadBox(a, map_a, k, tile.row, barrier);
      }
      if constexpr (S::kTurnedB) {
#pragma clang loop unroll(full)
        for (int i = 0; i < S::kColumns; i += 64) {
          KLoadBox(b + i * P::kLine, map_b, tile.column + i, k, barrier);
        }
      } else {
        KLoadBox(b, map_b, k, tile.column, barrier);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// For results of 16 bits: within 2^-13 of the value, and 2^-22 of 1.
template <int W>
KILN_FN Vec<float, W> KShortTanh(Vec<float, W> x) {
  const Vec<float, W> e = KFastExp2(x * 0x1.715476p+1f);
  const Vec<float, W> large =
      KMad(KFastInverse(e + 1.0f), (Vec<float, W>)(-2.0f), (Vec<float, W>)(1.0f));
  return __builtin_elementwise_abs(x) < 0x1p-6f ? x : large;
}

// Exchanges among four neighbouring lanes, of which lane i holds columns 2 i and 2 i + 1 of four
// octets: afterwards it holds all of octet i, so that 16 bytes are loaded and stored at a time.
KILN_FN Vec<float, 8> KExchangeOctets(const float (&pairs)[4][2], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
  float of_two[2][4];  // octets 0 or 1, and 2 or 3: columns of two neighbours
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) {
    const int octet = i & 2, column = i & 1;
    const float low = pairs[octet][column], high = pairs[octet + 1][column];
    const float other = KExchange(0xffffffff, odd ? low : high, 1);
    of_two[octet / 2][column] = odd ? other : low;
    of_two[octet / 2][column + 2] = odd ? high : other;
  }
  Vec<float, 8> all;
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) {
    const float low = of_two[0][i], high = of_two[1][i];
    const float other = KExchange(0xffffffff, upper ? low : high, 2);
    all[i] = upper ? other : low;
    all[i + 4] = upper ? high : other;
  }
  return all;
}

// Where a thread's octets lie: `row` and `column` of its warp's part of a tile.
struct KPlace {
  int row, column, rows, columns;  // those of the result end at rows, columns
};
// A piece of 16 rows and kColumns columns: finish(row, column, octet) for the thread's octets. Sums
// 4 j and 4 j + 1 are those at row lane / 4, columns 8 j + lane % 4 * 2 and the next, 4 j + 2 and
// 4 j + 3 those 8 rows below. kInside: the result has all of it, so that nothing is a branch and
// the octets' work overlaps.
template <int kColumns, bool kInside, class F>
KILN_FN void KFinishPiece(const float (&sums)[kColumns / 2], int lane, KPlace at, F finish) {
  const int row = at.row + (lane >> 2), of_quad = lane & 3;
#pragma clang loop unroll(full)
  for (int first = 0; first < kColumns; first += 32) {
    // Four octets of one row, or where fewer are left two of both rows.
    const bool is_whole = first + 32 <= kColumns;
#pragma clang loop unroll(full)
    for (int half = 0; half < (is_whole ? 2 : 1); ++half) {
      float pairs[4][2];
#pragma clang loop unroll(full)
      for (int i = 0; i < 4; ++i) {
        const int octet = first / 8 + (is_whole ? i : i % 2), below = is_whole ? half : i / 2;
        pairs[i][0] = sums[4 * octet + 2 * below];
        pairs[i][1] = sums[4 * octet + 2 * below + 1];
      }
      const Vec<float, 8> octet = KExchangeOctets(pairs, lane);
      const int to_row = row + 8 * (is_whole ? half : of_quad >> 1);
      const int to_column = at.column + first + 8 * (is_whole ? of_quad : of_quad & 1);
      if (kInside || (to_row < at.rows && to_column < at.columns)) {
        finish(to_row, to_column, octet);
      }
    }
  }
}
template <class S, int kPiece>
struct KPiece {
  using P = KProductPlan<S>;
  static constexpr int kBlock = kPiece / P::kChunks, kFirst = kPiece % P::kChunks * P::kChunk;
  static constexpr int kLeft = S::kColumns - kFirst;
  static constexpr int kColumns = kLeft < P::kChunk ? kLeft : P::kChunk;
};
// The sums of piece number `piece`; zeros where it is narrower.
template <class S, int kPiece = 0, int B, int N, int M>
KILN_FN void KTakePiece(int piece, const float (&sums)[B][N], float (&of_piece)[M]) {
  using Piece = KPiece<S, kPiece>;
  if constexpr (kPiece + 1 < KProductPlan<S>::kPieces) {
    if (piece != kPiece) return KTakePiece<S, kPiece + 1>(piece, sums, of_piece);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < M; ++i) {
    of_piece[i] = i < Piece::kColumns / 2
                      ? sums[Piece::kBlock][Piece::kFirst / 2 + i < N ? Piece::kFirst / 2 + i : 0]
                      : 0.0f;
  }
}

// A multiplying warpgroup's part: finish(row, column, values of 8 columns from there on) for all of
// the result. The number of columns is a multiple of 8.
template <class S, class F>
KILN_FN void KMultiplyTiles(unsigned shared, int group, int rows, int columns, int tile_rows,
                            int tile_columns, int steps, F finish) {
  using P = KProductPlan<S>;
  constexpr int kN = S::kColumns;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int warp = KOfFirstLane(KThread() >> 5 & 3), lane = KThread() & 31;
  const int blocks = __nvvm_read_ptx_sreg_nctaid_x();
  float sums[P::kBlocks][kN / 2];
  int stage = 0, turn = 0;
  unsigned parity = 0;
  if (S::kTurns && group == 1) KNamedArrive(1, 256);
  for (int number = (int)KBlock(); number < tile_rows * tile_columns; number += blocks, ++turn) {
    if (S::kTurns && (turn & 1) != group) {  // the other's: over its stages
      stage += steps;
      parity ^= stage / S::kStages & 1;
      stage %= S::kStages;
      continue;
    }
    const KTile tile = KTileAt<S>(number, tile_rows, tile_columns);
    const int of_group = S::kTurns ? 0 : group * 64 * P::kBlocks;
    // A wait for a parity cannot tell a phase from the one after the next: begin when the other
    // warpgroup has seen its last stage filled.
    if (S::kTurns) KNamedSync(1 + group, 256);
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes;
      const unsigned long of_a = KTileDescriptor(a + of_group * P::kLine, S::kTurnedA ? 8192 : 16);
      const unsigned long of_b = KTileDescriptor(a + P::kBytesA, S::kTurnedB ? 8192 : 16);
      KBarrierWait(full + 8 * stage, parity);
      if (S::kTurns && step == steps - 1) KNamedArrive(2 - group, 256);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma clang loop unroll(full)
      for (int k = 0; k < 4; ++k) {
#pragma clang loop unroll(full)
        for (int i = 0; i < P::kBlocks; ++i) {
          S::Mma::template Multiply<S::kTurnedA, S::kTurnedB>(
              sums[i], of_a + k * (S::kTurnedA ? 128 : 2) + i * 512,
              of_b + k * (S::kTurnedB ? 128 : 2), k == 0 ? step : 1);
        }
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      if (step > 0 && lane == 0) KBarrierArrive(empty + 8 * before);
      before = stage;
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) S::Mma::Wait(sums[i]);
    if (lane == 0) KBarrierArrive(empty + 8 * before);

    const KPlace at = {tile.row + of_group + warp * 16, tile.column, rows, columns};
    // Rolled, as what finishes a piece is long: only who takes its sums knows their registers.
#pragma clang loop unroll(disable)
    for (int piece = 0; piece < P::kPieces; ++piece) {
      float of_piece[P::kChunk / 2];
      KTakePiece<S>(piece, sums, of_piece);
      const int end = tile.column + kN < columns ? tile.column + kN : columns;
      const KPlace of = {at.row + piece / P::kChunks * 64,
                         tile.column + piece % P::kChunks * P::kChunk, rows, end};
      if (of.row + 16 <= rows && of.column + P::kChunk <= end) {
        KFinishPiece<P::kChunk, true>(of_piece, lane, of, finish);
      } else {
        KFinishPiece<P::kChunk, false>(of_piece, lane, of, finish);
      }
    }
  }
}

template <class S, class F>
KILN_FN void KProduct(unsigned long map_a, unsigned long map_b, int rows, int columns, int depth,
                      F finish) {
  using P = KProductPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const int tile_rows = (rows + S::kRows - 1) / S::kRows;
  const int tile_columns = (columns + S::kColumns - 1) / S::kColumns;
  const int steps = (depth + P::kStep - 1) / P::kStep;
  if (KThread() == 0) {
    const unsigned full = shared + P::kBarriers;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, 1);
      KBarrierInit(full + 8 * (S::kStages + i), (S::kTurns ? 1 : 2) * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int group = KOfFirstLane(KThread() >> 7);
  if (group == 2) {
    if constexpr (S::kManyRegisters) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    }
    if (KThread() == 256) {
      KLoadTiles<S>(shared, map_a, map_b, tile_rows, tile_columns, steps);
    }
  } else {
    if constexpr (S::kManyRegisters) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
    KMultiplyTiles<S>(shared, group, rows, columns, tile_rows, tile_columns, steps, finish);
  }
}
#endif
