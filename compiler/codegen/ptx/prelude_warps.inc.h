// Goes on where prelude_scores.inc.h ends: matrix products on the tensor cores of sm_80 and later,
// by mma.sync.
//
// A block has one tile of the result, of which each of its warps has a part. Tiles of both
// operands, kStep deep, go through a ring of stages: all threads copy 16 bytes at a time, of
// kStages - 1 steps ahead of the one that is multiplied, and meet once a step. Of 16 deep a warp
// loads the matrices of its part while it multiplies those before.
//
// Operands lie in shared memory in lines of 64 elements (of 32 where kStep is 32), along the depth
// or, where they are contiguous so, along the tile's side. A line's pieces of 16 bytes are permuted
// by its number, so that neither the eight lines of a matrix nor what threads copy meet in a bank.
//
// A Shape has: kRows, kColumns of a tile; kWarpRows, kWarpColumns of a warp's part, 32 or 64 each;
// kStep: 32 or 64; kStages; kTurnedA, kTurnedB: the operand is contiguous along the tile's side;
// kWholeA, kWholeB: what is contiguous ends at a multiple of 8 elements; kHalf: operands are of
// float16, not bfloat16; kCluster: 1; and what prelude_sums.inc.h takes.

// An operand of a tile, kSides along its side. kSecond: it is the second one, with columns for
// rows.
template <int kSides, int kStep, bool kTurned, bool kWhole, bool kSecond, int kThreads>
struct KTileOperand {
  // As they lie in memory: lines along what is contiguous, and their pieces of 16 bytes.
  static constexpr int kPieces = (kTurned ? kSides : kStep) / 8;
  static constexpr int kLines = kTurned ? kStep : kSides;
  static constexpr int kBytes = kSides * kStep * 2;
  static constexpr int kLineBytes = kTurned || kStep == 64 ? 128 : 64;  // in shared memory
  static constexpr int kApart = kThreads / kPieces;  // lines between those that a thread copies
  static constexpr int kTimes = kLines / kApart;
  static_assert(kThreads % kPieces == 0 && kLines % kApart == 0 && kTimes <= 32);
  static_assert(kApart % 8 == 0, "pieces of such lines are permuted alike");

  // Where a piece of a line lies, in bytes.
  KILN_FN unsigned PlaceOf(int line, int piece) {
    if constexpr (kTurned) {
      return (piece >> 3) * (kStep * 128) + line * 128 + ((piece & 7) ^ (line & 7)) * 16;
    } else if constexpr (kStep == 64) {
      return line * 128 + (piece ^ (line & 7)) * 16;
    } else {
      return (line >> 1) * 128 + ((line & 1) * 4 + (piece ^ (line >> 1 & 3))) * 16;
    }
  }

  // What a thread copies: a piece each of the lines `line`, `line` + kApart and so on.
  unsigned long from;  // of the next step
  long apart;          // bytes from one to the next
  long step;           // bytes to the next step
  int line, piece;
  unsigned inside;  // bits: lines that the operand has; of a turned one, elements of the piece

  // The operand begins at `first`; `pitch` bytes lie between its lines, and its side ends at
  // `sides`.
  KILN_INLINE void Begin(unsigned long first, long pitch, int side, int sides) {
    line = KThread() / kPieces;
    piece = KThread() % kPieces;
    apart = kApart * pitch;
    if constexpr (kTurned) {
      from = first + line * pitch + (long)(side + 8 * piece) * 2;
      step = kStep * pitch;
      inside = KWithin(sides - side - 8 * piece);
    } else {
      from = first + (side + line) * pitch + 16 * piece;
      step = kStep * 2;
      inside = 0;
#pragma clang loop unroll(full)
      for (int i = 0; i < kTimes; ++i) inside |= (side + line + i * kApart < sides) << i;
    }
  }
  // Of a piece, so many bytes as there are of `left` elements: other numbers than 0 and 16 take
  // more instructions.
  KILN_FN int KWithin(int left) { return left <= 0 ? 0 : kWhole || left >= 8 ? 16 : 2 * left; }
  // The step of that depth, of which `left` is left, to the stage's part at `to`.
  KILN_INLINE void Copy(unsigned to, int left) {
    const int along = kTurned ? (int)inside : KWithin(left - 8 * piece);
    const unsigned place = to + PlaceOf(line, piece);
#pragma clang loop unroll(full)
    for (int i = 0; i < kTimes; ++i) {
      const bool has = kTurned ? line + i * kApart < left : inside >> i & 1;
      KCopyAsync(place + i * kApart * kLineBytes, from + i * apart, has ? along : 0);
    }
    from += step;
  }

  // Where the lane's line of the first four matrices lies, of those from `first` on along the side:
  // for mma.sync's first operand words 0 and 1 are beside each other along the side and 0 and 2
  // along the depth, and for the second the other way round.
  KILN_FN unsigned OfLane(int first, int lane) {
    const int below = lane & 8, beside = lane >> 4 << 3;
    const int line = (lane & 7) + (kTurned != kSecond ? beside : below);
    const int piece = (kTurned != kSecond ? below : beside) >> 3;
    return kTurned ? PlaceOf(line, first / 8 + piece) : PlaceOf(first + line, piece);
  }
  // Those number `side` along the side and `deep` along the depth, each of 16. `at`: a stage's part
  // and OfLane.
  KILN_FN KOctet Load(unsigned at, int side, int deep) {
    const int along = kTurned ? side : deep, across = kTurned ? deep : side;
    return KLoadMatrices<kTurned>((at ^ along * 32) + across * 16 * kLineBytes);
  }
};

template <class S>
struct KWarpPlan {
  static constexpr int kDown = S::kRows / S::kWarpRows, kAcross = S::kColumns / S::kWarpColumns;
  static constexpr int kThreads = 32 * kDown * kAcross;
  using A = KTileOperand<S::kRows, S::kStep, S::kTurnedA, S::kWholeA, false, kThreads>;
  using B = KTileOperand<S::kColumns, S::kStep, S::kTurnedB, S::kWholeB, true, kThreads>;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kDeep = S::kStep / 16;  // times that a step is multiplied
  // When the second operand is copied, after the first one: before the wait for the step before.
  static constexpr int kCopyB = kDeep > 2 ? 1 : 0;
  static constexpr int kBlocks = S::kWarpRows / 16, kPairs = S::kWarpColumns / 16;
  static constexpr int kPieceBytes = 16 * 128;  // of results, of each warp, where the ring was
  static_assert(kDown * kAcross * kPieceBytes <= S::kStages * kStageBytes);
};

// `work` is a KWork of prelude_sums.inc.h. `a` and `b` point to elements of 16 bits, whose lines of
// what is contiguous are `pitch_a` and `pitch_b` elements apart.
template <class S, class F>
KILN_FN void KProductByWarps(const void* a, const void* b, long pitch_a, long pitch_b, int rows,
                             int columns, int depth, const F& work) {
  using P = KWarpPlan<S>;
  using A = typename P::A;
  using B = typename P::B;
  const unsigned shared = KSharedBase(), ring_end = shared + S::kStages * P::kStageBytes;
  const int steps = (depth + S::kStep - 1) / S::kStep;
  const KTile tile = KTiles<S>((rows + S::kRows - 1) / S::kRows,
                               (columns + S::kColumns - 1) / S::kColumns, (int)KBlock())
                         .At();
  const int lane = KThread() & 31, warp = KOfFirstLane(KThread() >> 5);
  const int row = warp % P::kDown * S::kWarpRows, column = warp / P::kDown * S::kWarpColumns;
  const auto next = [=](unsigned stage) KILN_INLINE {
    stage += P::kStageBytes;
    return stage == ring_end ? shared : stage;
  };

  A of_a;
  B of_b;
  of_a.Begin(KGlobalAddress(a), pitch_a * 2, tile.row, rows);
  of_b.Begin(KGlobalAddress(b), pitch_b * 2, tile.column, columns);
  // Of step `number`; after the last one zeros: fewer instructions than to leave them out.
  const auto copy_a = [&](int number, unsigned to)
                          KILN_INLINE { of_a.Copy(to, depth - number * S::kStep); };
  const auto copy_b = [&](int number, unsigned to) KILN_INLINE {
    of_b.Copy(to + A::kBytes, depth - number * S::kStep);
    KCopyCommit();
  };
  unsigned to = shared;
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kStages - 1; ++i, to += P::kStageBytes) {
    copy_a(i, to);
    copy_b(i, to);
  }

  const unsigned lane_a = A::OfLane(row, lane), lane_b = A::kBytes + B::OfLane(column, lane);
  KOctet matrices_a[2][P::kBlocks], matrices_b[2][P::kPairs];
  const auto load = [&](int turn, unsigned from, int deep) KILN_INLINE {
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) matrices_a[turn][i] = A::Load(from + lane_a, i, deep);
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kPairs; ++i) matrices_b[turn][i] = B::Load(from + lane_b, i, deep);
  };
  float sums[P::kBlocks][S::kWarpColumns / 2] = {};
  unsigned from = shared;
  KCopyWait<S::kStages - 2>();
  KBlockSync();
  load(0, from, 0);
#pragma clang loop unroll(disable)
  for (int number = 0; number < steps; ++number) {
#pragma clang loop unroll(full)
    for (int deep = 0; deep < P::kDeep; ++deep) {
      if (deep == P::kDeep - 1) {
        // All have loaded what they multiply of this step, and all of the next one is there.
        KCopyWait<S::kStages - 2>();
        KBlockSync();
        from = next(from);
      }
      load((deep + 1) % 2, from, (deep + 1) % P::kDeep);
      if (deep == 0) copy_a(number + S::kStages - 1, to);
      if (deep == P::kCopyB) {
        copy_b(number + S::kStages - 1, to);
        to = next(to);
      }
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBlocks; ++i) {
        const KOctet x = matrices_a[deep % 2][i];
#pragma clang loop unroll(full)
        for (int j = 0; j < 2 * P::kPairs; ++j) {
          const KOctet y = matrices_b[deep % 2][j / 2];
          KMultiplyPairs<S::kHalf>(&sums[i][4 * j], {x[0], x[1], x[2], x[3]}, y[j % 2 * 2],
                                   y[j % 2 * 2 + 1]);
        }
      }
    }
  }
  // Results take the place of the ring.
  KCopyWait<0>();
  KBlockSync();
  const int end = tile.column + S::kColumns < columns ? tile.column + S::kColumns : columns;
  KFinishSums<KOfWarp<S, P::kBlocks, 16, S::kWarpColumns>>(
      sums, {tile.row + row, tile.column + column, rows, end}, shared + warp * P::kPieceBytes,
      work);
}
