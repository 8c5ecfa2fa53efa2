// Goes on where prelude_tensor.inc.h ends: what is done with the sums of products on tensor cores,
// and in which order tiles of a result come.
//
// Of a Shape it takes: kRows, kColumns of a tile; kCluster: blocks with tiles one below the other;
// kShort: whether what waits of sums has 16 bits; kAtOnce: how many times a lane has 8 columns at a
// time; kWhole: tiles end with the result; kRagged:
// whether the number of columns is no multiple of 8; kByBlocks: whether what waits goes to shared
// memory by KStoreBlocks.

template <int kCluster>
KILN_FN int KRankInCluster() {
  return kCluster > 1 ? (int)KBlock() % kCluster : 0;
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

// ---- What is done with sums ----------------------------------------------------------------
//
// In registers a lane has pairs of columns. They go through shared memory, so that it finishes 8
// columns of a row, and a warp whole lines. Of a pair begin(column, sums) makes what waits there:
// where a Shape is kShort two numbers of 16 bits, an `unsigned`, else a Vec<float, 2>. Of 8 columns
// finish(row, column, whether they are inside, what waited) makes a function that stores results;
// what waited is a KOctet or a Vec<float, 8>, and `row` and `column` of some that are inside. Where
// columns end anywhere, finish has one: an unsigned short or a Vec<float, 1>.

// Where a warp's piece of the result begins, and where the result ends.
struct KPlace {
  int row, column, rows, columns;
};
// What waits of 16 rows: lines of 128 bytes, whose pieces of 16 are permuted so that neither pairs
// nor octets meet in a bank.
template <class S>
KILN_FN unsigned KWaitingAt(unsigned buffer, int row, int piece) {
  const int turned = S::kShort ? row & 7 : (row & 3) << 1 | (row & 1);
  return buffer + row * 128 + (piece ^ turned) * 16;
}
// A lane's pair of a row's octet of columns waits.
template <class S, class T>
KILN_FN void KLetWait(unsigned buffer, int row, int octet, int pair, T waiting) {
  if constexpr (S::kShort) {
    KStoreWord(KWaitingAt<S>(buffer, row, octet) + 4 * pair, waiting);
  } else {
    KStoreFloats(KWaitingAt<S>(buffer, row, 2 * octet + (pair >> 1)) + 8 * (pair & 1), waiting[0],
                 waiting[1]);
  }
}
// kOctets octets of a piece's columns, from number kOctet on, whose sums are those from
// sums[kFirst] on: 4 j and 4 j + 1 are at row lane / 4, columns 8 j + lane % 4 * 2 and the next,
// 4 j + 2 and 4 j + 3 those 8 rows below.
template <class S, int kFirst, int kOctet, int kOctets, int N, class B>
KILN_FN void KBeginPiece(const float (&sums)[N], int lane, KPlace at, unsigned buffer, B begin) {
  constexpr int kNow = kOctets < 2 * S::kAtOnce ? kOctets : 2 * S::kAtOnce;
  decltype(begin(0, Vec<float, 2>{})) waiting[kNow][2];
#pragma clang loop unroll(full)
  for (int i = 0; i < kNow; ++i) {
    const int first = at.column + 8 * (kOctet + i);
    const int column = (S::kWhole || first < at.columns ? first : 0) + 2 * (lane & 3);
#pragma clang loop unroll(full)
    for (int half = 0; half < 2; ++half) {
      const float* pair = &sums[kFirst + 4 * i + 2 * half];
      waiting[i][half] = begin(column, Vec<float, 2>{pair[0], pair[1]});
    }
  }
  if constexpr (S::kShort && S::kByBlocks) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kNow; i += 2) {
      KStoreBlocks(KWaitingAt<S>(buffer, lane & 15, kOctet + i + (lane >> 4)), waiting[i][0],
                   waiting[i][1], waiting[i + 1][0], waiting[i + 1][1]);
    }
  } else {
#pragma clang loop unroll(full)
    for (int i = 0; i < kNow; ++i) {
#pragma clang loop unroll(full)
      for (int half = 0; half < 2; ++half) {
        KLetWait<S>(buffer, (lane >> 2) + 8 * half, kOctet + i, lane & 3, waiting[i][half]);
      }
    }
  }
  if constexpr (kNow < kOctets) {
    KBeginPiece<S, kFirst + 4 * kNow, kOctet + kNow, kOctets - kNow>(sums, lane, at, buffer, begin);
  }
}
// What finish has of a place in a piece.
template <class S>
KILN_FN auto KWaiting(unsigned buffer, int row, int column) {
  if constexpr (S::kRagged && S::kShort) {
    return KLoadShort(KWaitingAt<S>(buffer, row, column / 8) + column % 8 * 2);
  } else if constexpr (S::kRagged) {
    const unsigned from = KWaitingAt<S>(buffer, row, column / 4) + column % 4 * 4;
    return __builtin_bit_cast(Vec<float, 1>, KLoadWord(from));
  } else if constexpr (S::kShort) {
    return KLoadOctet(KWaitingAt<S>(buffer, row, column / 8));
  } else {
    struct {
      KOctet of[2];
    } octets;
    octets.of[0] = KLoadOctet(KWaitingAt<S>(buffer, row, column / 4));
    octets.of[1] = KLoadOctet(KWaitingAt<S>(buffer, row, column / 4 + 1));
    return __builtin_bit_cast(Vec<float, 8>, octets);
  }
}
template <class T>
struct KFinishing {
  int row, column;
  bool inside;
  T waiting;
};
// What one depends on may lie where another one's results go: no store is before a load.
template <int kTime = 0, int kTimes, class T, class F>
KILN_FN void KFinishAll(const KFinishing<T> (&all)[kTimes], F& finish) {
  const KFinishing<T>& one = all[kTime];
  const auto store = finish(one.row, one.column, one.inside, one.waiting);
  if constexpr (kTime + 1 < kTimes) KFinishAll<kTime + 1>(all, finish);
  store();
}
// A piece of kColumns columns that waits.
template <class S, int kColumns, class F>
KILN_FN void KFinishPiece(int lane, KPlace at, unsigned buffer, F& finish) {
  using T = decltype(KWaiting<S>(buffer, 0, 0));
  constexpr int kLanes = S::kRagged ? 1 : 8, kPlaces = kColumns / kLanes;  // of a row
  constexpr int kEach = kPlaces / 2;  // of a lane, of 16 rows
  constexpr int kTimes = kEach <= S::kAtOnce ? kEach : kEach % S::kAtOnce == 0 ? S::kAtOnce : 1;
#pragma clang loop unroll(disable)
  for (int first = 0; first < kEach; first += kTimes) {
    KFinishing<T> all[kTimes];
#pragma clang loop unroll(full)
    for (int i = 0; i < kTimes; ++i) {
      const int place = 32 * (first + i) + lane;
      const int row = place / kPlaces, column = place % kPlaces * kLanes;
      const bool inside = S::kWhole || (at.row + row < at.rows && at.column + column < at.columns);
      all[i] = {inside ? at.row + row : 0, inside ? at.column + column : 0, inside,
                KWaiting<S>(buffer, row, column)};
    }
    KFinishAll(all, finish);
  }
}
// All that a warp has of a Shape's sums: kHigh times 16 rows, kRowsApart from each other, and kWide
// columns; and what waits of them at a time: 16 rows by kChunk columns, or fewer at the end.
template <class S, int kHigh, int kRowsApart, int kWide>
struct KOfWarp : S {
  static constexpr int kApart = kRowsApart, kMost = S::kShort ? 64 : 32;
  static constexpr int kChunk = S::kShort && kWide % 64 != 0 && kWide % 48 == 0 ? 48 : kMost;
  static constexpr int kChunks = (kWide + kChunk - 1) / kChunk, kPieces = kHigh * kChunks;
  static constexpr int kLast = kWide - (kChunks - 1) * kChunk;  // columns
};
template <class W, int kPiece>
struct KPiece {
  static constexpr int kBlock = kPiece / W::kChunks, kFirst = kPiece % W::kChunks * W::kChunk;
  static constexpr int kColumns = kPiece % W::kChunks == W::kChunks - 1 ? W::kLast : W::kChunk;
};
// Begins piece number `piece`: only who takes its sums knows their registers.
template <class W, int kPiece = 0, int B, int N, class F>
KILN_FN void KBeginPieceOf(int piece, const float (&sums)[B][N], int lane, KPlace at,
                           unsigned buffer, F begin) {
  using Piece = KPiece<W, kPiece>;
  if constexpr (kPiece + 1 < W::kPieces) {
    if (piece != kPiece) {
      return KBeginPieceOf<W, kPiece + 1>(piece, sums, lane, at, buffer, begin);
    }
  }
  KBeginPiece<W, Piece::kFirst / 2, 0, Piece::kColumns / 8>(sums[Piece::kBlock], lane, at, buffer,
                                                            begin);
}
template <class W>
KILN_FN KPlace KPlaceOf(int piece, KPlace at) {
  return {at.row + piece / W::kChunks * W::kApart, at.column + piece % W::kChunks * W::kChunk,
          at.rows, at.columns};
}
// All sums of a warp, a KOfWarp: `at` is where its first ones lie in the result.
template <class W, int B, int N, class F, class G>
KILN_FN void KFinishSums(const float (&sums)[B][N], KPlace at, unsigned buffer, F begin,
                         G finish) {
  // One piece after another: what is printed for each is too much to compile, and no faster.
#pragma clang loop unroll(disable)
  for (int piece = 0; piece < W::kPieces; ++piece) {
    const KPlace of = KPlaceOf<W>(piece, at);
    const int lane = KAgain(KThread()) & 31;  // not kept beside the sums
    KMeetWarp();
    KBeginPieceOf<W>(piece, sums, lane, of, buffer, begin);
    KMeetWarp();
    if (W::kLast < W::kChunk && piece % W::kChunks == W::kChunks - 1) {
      KFinishPiece<W, W::kLast>(lane, of, buffer, finish);
    } else {
      KFinishPiece<W, W::kChunk>(lane, of, buffer, finish);
    }
  }
}
