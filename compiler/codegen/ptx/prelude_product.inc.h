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
// kCluster: blocks, 1 or 2, with tiles one below the other, each of which loads its part of what
// is the same for all, the second operand, into the shared memory of all;
// kChunk: columns that a warp finishes at a time;
// kTurnedA, kTurnedB: the operand is contiguous along the tile's side, not along the depth;
// kManyRegisters: sums leave few for anything else; kRolled: what is done with sums is printed once
// for all of a thread's, and not for each; kResults: how many results of 16 bits a sum
// has; kRagged: whether the number of columns is no multiple of 8; Mma: the instruction for
// kColumns, and float registers of its result.
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
// The same for all blocks of a cluster of two, at the same place and barrier of each.
KILN_FN void KLoadBoxOfBoth(unsigned to, unsigned long map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)3)
      : "memory");
}
// At the barrier of that place in another block of the cluster. Without `.release.cluster`, of
// which the assembler makes a fence of all memory: what the arrival follows are reads.
KILN_FN void KBarrierArriveIn(unsigned barrier, int block) {
  asm volatile(
      "{.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
KILN_FN void KClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
template <int kCluster>
KILN_FN int KRankInCluster() {
  return kCluster > 1 ? (int)KBlock() % kCluster : 0;
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
// Of tile `number`, where a cluster has one below the other: those of a few rows together, so that
// what runs at a time shares operands in the second-level cache.
template <class S>
KILN_FN KTile KTileAt(int number, int rows, int columns) {
  constexpr int kRows = S::kRows * S::kCluster, kGroup = 1024 / kRows;
  const int per_group = kGroup * columns, group = number / per_group, first = group * kGroup;
  const int in_group = rows - first < kGroup ? rows - first : kGroup;
  const int rest = number - group * per_group;
  return {(first + rest % in_group) * kRows + KRankInCluster<S::kCluster>() * S::kRows,
          rest / in_group * S::kColumns};
}

template <class S>
struct KProductPlan {
  static constexpr int kStep = 64, kLine = 128;  // bytes of a step's elements
  static constexpr int kBytesA = S::kRows * kLine, kBytesB = S::kColumns * kLine;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  // Then, of each multiplying warp, 16 rows of results of 64 columns; then barriers.
  static constexpr int kPieceBytes = 16 * kLine;
  static constexpr int kPiecesAt = S::kStages * kStageBytes;
  static constexpr int kBarriers = kPiecesAt + 8 * kPieceBytes;
  // Of 64 rows, that a warpgroup multiplies in each step.
  static constexpr int kBlocks = S::kTurns ? S::kRows / 64 : S::kRows / 128;
  // What a warp finishes at a time: 16 rows by kChunk columns, or fewer at the tile's end.
  static constexpr int kChunks = (S::kColumns + S::kChunk - 1) / S::kChunk;
  static constexpr int kPieces = kBlocks * kChunks;
};

// Boxes of an operand's tile from `side` on, kSides long, and its step from k on.
template <int kSides, bool kTurned>
KILN_FN void KLoadTile(unsigned to, unsigned long map, int side, int k, unsigned barrier) {
  if constexpr (kTurned) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kSides; i += 64) KLoadBox(to + i * 128, map, side + i, k, barrier);
  } else {
    KLoadBox(to, map, k, side, barrier);
  }
}
// One thread's part: all boxes of all tiles of the block.
template <class S>
KILN_FN void KLoadTiles(unsigned shared, unsigned long map_a, unsigned long map_b, int tile_rows,
                        int tile_columns, int steps) {
  using P = KProductPlan<S>;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int clusters = __nvvm_read_ptx_sreg_nctaid_x() / S::kCluster;
  const int rank = KRankInCluster<S::kCluster>();
  int stage = 0;
  unsigned parity = 1;
  for (int number = (int)KBlock() / S::kCluster; number < tile_rows * tile_columns;
       number += clusters) {
    const KTile tile = KTileAt<S>(number, tile_rows, tile_columns);
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes, b = a + P::kBytesA;
      const unsigned barrier = full + 8 * stage;
      const int k = step * P::kStep;
      KBarrierWait(empty + 8 * stage, parity);
      KBarrierExpect(barrier, P::kStageBytes);
      KLoadTile<S::kRows, S::kTurnedA>(a, map_a, tile.row, k, barrier);
      if constexpr (S::kCluster > 1) {
        KLoadBoxOfBoth(b + rank * (P::kBytesB / 2), map_b, k,
                       tile.column + rank * (S::kColumns / 2), barrier);
      } else {
        KLoadTile<S::kColumns, S::kTurnedB>(b, map_b, tile.column, k, barrier);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// ---- Functions for results of 16 bits ------------------------------------------------------
// Within 2^-17 of the value, or 2^-22 of 1 where that is more.

template <int W>
KILN_FN Vec<float, W> KShortExp(Vec<float, W> x) {
  return KFastExp2(x * 0x1.715476p+0f);
}
template <int W>
KILN_FN Vec<float, W> KShortTanh(Vec<float, W> x) {
  const Vec<float, W> e = KFastExp2(x * 0x1.715476p+1f);
  const Vec<float, W> large =
      KMad(KFastInverse(e + 1.0f), (Vec<float, W>)(-2.0f), (Vec<float, W>)(1.0f));
  return __builtin_elementwise_abs(x) < 0x1p-6f ? x : large;
}
template <int W>
KILN_FN Vec<float, W> KShortSigmoid(Vec<float, W> x) {
  return KFastInverse(KFastExp2(x * -0x1.715476p+0f) + 1.0f);
}
// Abramowitz and Stegun, 7.1.26.
template <int W>
KILN_FN Vec<float, W> KShortErf(Vec<float, W> x) {
  using F = Vec<float, W>;
  const F a = __builtin_elementwise_abs(x);
  const F t = KFastInverse(KMad(a, (F)(0.3275911f), (F)(1.0f)));
  const F p = KPoly(t, 0.254829592f, -0.284496736f, 1.421413741f, -1.453152027f, 1.061405429f) * t;
  const F large = KMad(-p, KFastExp2(x * x * -0x1.715476p+0f), (F)(1.0f));
  const F of_size = a < 0x1p-6f ? a * 1.1283792f : large;
  return (F)(KBits(of_size) | (KBits(x) & (int)0x80000000));
}
// a / b, b in [1, inf]: what it is less than 2^-126 of `a` may be 0.
template <int W>
KILN_FN Vec<float, W> KShortOver(Vec<float, W> a, Vec<float, W> b) {
  return a * KFastInverse(b);
}
template <int W>
KILN_FN Vec<float, W> KShortQuotient(Vec<float, W> a, Vec<float, W> b) {
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) {
    float q;
    asm("div.full.f32 %0, %1, %2;" : "=f"(q) : "f"(a[i]), "f"(b[i]));
    a[i] = q;
  }
  return a;
}

// ---- What is done with sums ----------------------------------------------------------------

KILN_FN void KMeetWarp() {
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}
// Four blocks of 8 rows and 8 columns, a pair of a row's elements from each lane; lanes 8 i to
// 8 i + 7 give where the rows of block i go.
KILN_FN void KStoreBlocks(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
using KOctet = Vec<unsigned, 4>;  // 8 elements of 16 bits
KILN_FN KOctet KLoadOctet(unsigned from) {
  KOctet x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
  return x;
}

KILN_FN unsigned short KLoadShort(unsigned from) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  return x;
}

// Where a warp's piece of the result begins, and where the result ends.
struct KPlace {
  int row, column, rows, columns;
};
// What finish makes of one sum after the other where columns end anywhere: it may not reach past
// the last one.
template <class S, class F>
KILN_FN void KFinishPair(F& finish, int row, bool has_row, int column, const KPlace& at,
                         Vec<float, 2> pair,
                         unsigned (&results)[S::kResults > 0 ? S::kResults : 1]) {
  constexpr int kResults = S::kResults > 0 ? S::kResults : 1;
  unsigned short halves[2][kResults] = {};
#pragma clang loop unroll(full)
  for (int i = 0; i < 2; ++i) {
    const bool has_column = column + i < at.columns;
    const Vec<float, 1> sum = {pair[i]};
    finish(has_row ? row : 0, has_column ? column + i : 0, has_row && has_column, sum, halves[i]);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < kResults; ++i) results[i] = halves[0][i] | (unsigned)halves[1][i] << 16;
}
// Stores a result's piece of kColumns columns from shared memory, as many elements of a row at a
// time as there are.
template <int kColumns, class G>
KILN_FN void KStoreRagged(int number, int lane, const KPlace& at, unsigned buffer, G& store) {
#pragma clang loop unroll(full)
  for (int i = 0; i < kColumns / 2; ++i) {
    const int element = 32 * i + lane, row = element / kColumns, column = element % kColumns;
    if (at.row + row < at.rows && at.column + column < at.columns) {
      store(number, at.row + row, at.column + column,
            KLoadShort(buffer + row * 128 + (column / 8 ^ row & 7) * 16 + column % 8 * 2));
    }
  }
}
// 16 rows and kColumns columns from sums[kFirst] on. Sums 4 j and 4 j + 1 are those at row lane /
// 4, columns 8 j + lane % 4 * 2 and the next, 4 j + 2 and 4 j + 3 those 8 rows below. Of a pair
// finish(row, column, whether it is inside, sums, results) makes the results of 16 bits and stores
// others; outside it has a place that is inside. Those of 16 bits go through shared memory, at
// `buffer`, so that store(number, row, column, octet) has 8 columns, and a warp whole lines. Where
// S is kRagged finish has one sum, and store one element.
template <class S, int kFirst, int kColumns, int N, class F, class G>
KILN_FN void KFinishPiece(const float (&sums)[N], int lane, KPlace at, unsigned buffer, F finish,
                          G store) {
  constexpr int kOctets = kColumns / 8;
  unsigned results[kOctets][2][S::kResults > 0 ? S::kResults : 1];
  const int row = at.row + (lane >> 2), of_lane = 2 * (lane & 3);
#pragma clang loop unroll(full)
  for (int i = 0; i < kOctets; ++i) {
    const bool has_column = at.column + 8 * i < at.columns;
    const int column = (has_column ? at.column + 8 * i : 0) + of_lane;
#pragma clang loop unroll(full)
    for (int half = 0; half < 2; ++half) {
      const bool has_row = row + 8 * half < at.rows;
      const Vec<float, 2> pair = {sums[kFirst + 4 * i + 2 * half],
                                  sums[kFirst + 4 * i + 2 * half + 1]};
      if constexpr (S::kRagged) {
        KFinishPair<S>(finish, row + 8 * half, has_row, at.column + 8 * i + of_lane, at, pair,
                       results[i][half]);
      } else {
        finish(has_row ? row + 8 * half : 0, column, has_row && has_column, pair, results[i][half]);
      }
    }
  }
  constexpr int kRows = 32 / kOctets, kTimes = 16 / kRows;  // that a warp stores at a time
  const int of_time = lane / kOctets, octet = lane % kOctets;
  const auto load = [&](int time) KILN_INLINE {
    const int of_piece = time * kRows + of_time;
    return KLoadOctet(buffer + of_piece * 128 + (octet ^ (of_piece & 7)) * 16);
  };
  constexpr bool kSeveral = S::kResults > 1;
  KOctet octets[kSeveral ? S::kResults : 1][kTimes];
#pragma clang loop unroll(full)
  for (int number = 0; number < S::kResults; ++number) {
    const int to_row = lane & 15, to_octet = lane >> 4;
    KMeetWarp();
#pragma clang loop unroll(full)
    for (int i = 0; i < kOctets; i += 2) {
      KStoreBlocks(buffer + to_row * 128 + ((i + to_octet) ^ (to_row & 7)) * 16,
                   results[i][0][number], results[i][1][number], results[i + 1][0][number],
                   results[i + 1][1][number]);
    }
    KMeetWarp();
    if constexpr (S::kRagged) {
      KStoreRagged<kColumns>(number, lane, at, buffer, store);
    } else {
#pragma clang loop unroll(full)
      for (int i = 0; kSeveral && i < kTimes; ++i) octets[number][i] = load(i);
    }
  }
  if constexpr (!S::kRagged) {
    // Not before: a result may lie where one lane has yet to load what another result depends on.
#pragma clang loop unroll(full)
    for (int i = 0; i < kTimes; ++i) {
      const int to_row = at.row + i * kRows + of_time, to_column = at.column + 8 * octet;
      if (S::kResults > 0 && to_row < at.rows && to_column < at.columns) {
#pragma clang loop unroll(full)
        for (int number = 0; number < S::kResults; ++number) {
          store(number, to_row, to_column, kSeveral ? octets[number][i] : load(i));
        }
      }
    }
  }
}
template <class S, int kPiece>
struct KPiece {
  using P = KProductPlan<S>;
  static constexpr int kBlock = kPiece / P::kChunks, kFirst = kPiece % P::kChunks * S::kChunk;
  static constexpr int kLeft = S::kColumns - kFirst;
  static constexpr int kColumns = kLeft < S::kChunk ? kLeft : S::kChunk;
};
// The sums of piece number `piece`, zeros where it is narrower: only who takes them knows their
// registers.
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

// Arrives at a stage's `empty`, of all blocks whose operands were in it.
template <class S>
KILN_FN void KGiveBack(unsigned barrier, int lane) {
  if constexpr (S::kCluster > 1) {
    if (lane < S::kCluster) KBarrierArriveIn(barrier, lane);
  } else {
    if (lane == 0) KBarrierArrive(barrier);
  }
}

// All of a warp's sums, from column kFirst of the tile on.
template <class S, int kFirst = 0, int B, int N, class F, class G>
KILN_FN void KFinishPieces(const float (&sums)[B][N], int lane, KPlace at, unsigned buffer,
                           F finish, G store) {
  if constexpr (kFirst < S::kColumns) {
    constexpr int kLeft = S::kColumns - kFirst, kMost = S::kChunk;
    constexpr int kColumns = kLeft >= kMost ? kMost : kLeft >= 32 ? 32 : 16;
#pragma clang loop unroll(full)
    for (int i = 0; i < B; ++i) {
      const KPlace of = {at.row + i * 64, at.column + kFirst, at.rows, at.columns};
      KFinishPiece<S, kFirst / 2, kColumns>(sums[i], lane, of, buffer, finish, store);
    }
    KFinishPieces<S, kFirst + kColumns>(sums, lane, at, buffer, finish, store);
  }
}

// A multiplying warpgroup's part, with `finish` and `store` of KFinishPiece.
template <class S, class F, class G>
KILN_FN void KMultiplyTiles(unsigned shared, int group, int rows, int columns, int tile_rows,
                            int tile_columns, int steps, F finish, G store) {
  using P = KProductPlan<S>;
  constexpr int kN = S::kColumns;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int warp = KOfFirstLane(KThread() >> 5 & 3), lane = KThread() & 31;
  const int clusters = __nvvm_read_ptx_sreg_nctaid_x() / S::kCluster;
  const unsigned buffer = shared + P::kPiecesAt + (group * 4 + warp) * P::kPieceBytes;
  float sums[P::kBlocks][kN / 2];
  int stage = 0, turn = 0;
  unsigned parity = 0;
  if (S::kTurns && group == 1) KNamedArrive(1, 256);
  for (int number = (int)KBlock() / S::kCluster; number < tile_rows * tile_columns;
       number += clusters, ++turn) {
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
      if (step > 0) KGiveBack<S>(empty + 8 * before, lane);
      before = stage;
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) S::Mma::Wait(sums[i]);
    KGiveBack<S>(empty + 8 * before, lane);

    const int end = tile.column + kN < columns ? tile.column + kN : columns;
    const KPlace at = {tile.row + of_group + warp * 16, tile.column, rows, end};
    if constexpr (S::kRolled) {
#pragma clang loop unroll(disable)
      for (int piece = 0; piece < P::kPieces; ++piece) {
        float of_piece[S::kChunk / 2];
        KTakePiece<S>(piece, sums, of_piece);
        const KPlace of = {at.row + piece / P::kChunks * 64,
                           at.column + piece % P::kChunks * S::kChunk, rows, end};
        KFinishPiece<S, 0, S::kChunk>(of_piece, lane, of, buffer, finish, store);
      }
    } else {
      KFinishPieces<S>(sums, lane, at, buffer, finish, store);
    }
  }
}

template <class S, class F, class G>
KILN_FN void KProduct(unsigned long map_a, unsigned long map_b, int rows, int columns, int depth,
                      F finish, G store) {
  using P = KProductPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const int tile_rows = (rows + S::kRows * S::kCluster - 1) / (S::kRows * S::kCluster);
  const int tile_columns = (columns + S::kColumns - 1) / S::kColumns;
  const int steps = (depth + P::kStep - 1) / P::kStep;
  KLetNextBegin();
  if (KThread() == 0) {
    const unsigned full = shared + P::kBarriers;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, 1);
      KBarrierInit(full + 8 * (S::kStages + i), (S::kTurns ? 1 : 2) * 4 * S::kCluster);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (S::kCluster > 1) {
    KClusterSync();
  } else {
    __syncthreads();
  }
  KWaitForPrevious();
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
    KMultiplyTiles<S>(shared, group, rows, columns, tile_rows, tile_columns, steps, finish, store);
  }
  // Until then other blocks of the cluster may arrive at this one's barriers.
  if constexpr (S::kCluster > 1) {
    KMeetWarp();
    KClusterSync();
  }
}
#endif
