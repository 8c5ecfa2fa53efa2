// Goes on where prelude_tensor.inc.h ends: what is done with the sums of products on tensor cores,
// and in which order tiles of a result come.
//
// Of a Shape it takes: kRows, kColumns of a tile; kCluster: blocks with tiles one below the other;
// kShort: whether what waits of sums has 16 bits; kAtOnce: how many times a lane has 8 columns at a
// time; kWhole: tiles end with the result; kRagged: whether the number of columns is no multiple of
// 8; kByBlocks: whether what waits goes to shared memory by KStoreBlocks.

template <int kCluster>
KILN_FN int KRankInCluster() {
  return kCluster > 1 ? (int)KBlock() % kCluster : 0;
}
struct KTile {
  int row, column;
};
// The tiles of a result, `rows` by `columns` of them, or of pairs one below the other for a
// cluster: those of a few rows together, so that what runs at a time shares operands in the
// second-level cache. A block goes on from tile to tile without dividing by what only a launch
// knows.
template <class S>
struct KTiles {
  static constexpr int kRows = S::kRows * S::kCluster, kGroup = 1024 / kRows;
  int rows, columns;
  int first = 0, number;  // the group's first row, the tile's number in it
  KILN_INLINE KTiles(int rows, int columns, int begin)
      : rows(rows), columns(columns), number(begin) {
    const int per_group = kGroup * columns, group = begin / per_group;
    first = group * kGroup;
    number -= group * per_group;
  }
  KILN_INLINE bool IsAny() const { return number < (rows - first) * columns; }
  KILN_INLINE void Skip(int tiles) {
    number += tiles;
#pragma clang loop unroll(disable)
    for (; number >= kGroup * columns; number -= kGroup * columns) first += kGroup;
  }
  KILN_INLINE KTile At() const {
    const int height = rows - first;
    if (height >= kGroup) return At(number % kGroup, number / kGroup);
    // The last few rows alone divide by a variable: what is opaque is not made one with the above.
    return At(KAgain(number % height), KAgain(number / height));
  }
  KILN_INLINE KTile At(int row, int column) const {
    return {(first + row) * kRows + KRankInCluster<S::kCluster>() * S::kRows, column * S::kColumns};
  }
};

// ---- What is done with sums ----------------------------------------------------------------
//
// In registers a lane has pairs of columns. They go through shared memory, so that it finishes 8
// columns of a row, and a warp whole lines; a piece at a time, by the same code for all: what is
// printed for each piece is too much to compile. What is loaded for a piece is on its way while the
// one before is finished.

// begin(of_columns(column), the sums of two columns) is what waits of them: an `unsigned`, two
// numbers of 16 bits, where a Shape is kShort, else a Vec<float, 2>. finish(of_place(row, column),
// row, column, whether that is inside, what waits of 8 columns) is a function that stores results:
// of a KOctet or a Vec<float, 8>. Where columns end anywhere it is of one, an unsigned short or a
// Vec<float, 1>. Outside, `row` and `column` are some that are inside.
template <class A, class B, class C, class D>
struct KWork {
  A of_columns;
  B begin;
  C of_place;
  D finish;
};
template <class A, class B, class C, class D>
KWork(A, B, C, D) -> KWork<A, B, C, D>;

struct KNothing {};

// Where a warp's piece of the result begins, and where the result ends.
struct KPlace {
  int row, column, rows, columns;
};
// What waits of 16 rows: lines of 128 bytes, whose parts of 16 are permuted so that neither pairs
// nor octets meet in a bank.
template <class S>
KILN_FN unsigned KWaitingAt(unsigned buffer, int row, int part) {
  const int turned = S::kShort ? row & 7 : (row & 3) << 1 | (row & 1);
  return buffer + row * 128 + (part ^ turned) * 16;
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

// Columns that wait at a time, so that the last ones leave few lanes without work.
constexpr int KChunk(int columns, bool is_short) {
  const int most = is_short ? 64 : 32;
  if (columns <= most) return columns;
  return is_short && (columns + 47) / 48 * 48 < (columns + 63) / 64 * 64 ? 48 : most;
}
// All that a warp has of a Shape's sums: kHigh times 16 rows, kRowsApart from each other, and kWide
// columns; and what waits of them at a time: 16 rows by kChunk columns, of which the last kLast are
// there at the end.
template <class S, int kHigh, int kRowsApart, int kWide>
struct KOfWarp : S {
  static constexpr int kApart = kRowsApart, kColumns = kWide;
  static constexpr int kChunk = KChunk(kWide, S::kShort);
  static constexpr int kChunks = (kWide + kChunk - 1) / kChunk, kPieces = kHigh * kChunks;
  static constexpr int kLast = kWide - (kChunks - 1) * kChunk;
  static constexpr bool kAllInside = S::kWhole && kLast == kChunk;
  KILN_FN KPlace At(int piece, KPlace at) {
    return {at.row + piece / kChunks * kApart, at.column + piece % kChunks * kChunk, at.rows,
            at.columns};
  }
};
// What a lane finishes of a piece: kEach places, kTimes at a time.
template <class W>
struct KPlaces {
  static constexpr int kLanes = W::kRagged ? 1 : 8, kOfRow = W::kChunk / kLanes;
  static constexpr int kEach = kOfRow / 2;  // of 16 rows
  static constexpr bool kInTurn = kEach % W::kAtOnce == 0;
  static constexpr int kTimes = kEach <= W::kAtOnce ? kEach : kInTurn ? W::kAtOnce : 1;
  int row, column;  // in the piece
  KILN_INLINE KPlaces(int lane, int number)
      : row((32 * number + lane) / kOfRow), column((32 * number + lane) % kOfRow * kLanes) {}
  KILN_INLINE bool IsInside(const KPlace& at) const {
    return W::kAllInside || (at.row + row < at.rows && at.column + column < at.columns);
  }
  template <class F>
  KILN_INLINE auto Load(const KPlace& at, const F& work) const {
    const bool inside = IsInside(at);
    return work.of_place(inside ? at.row + row : 0, inside ? at.column + column : 0);
  }
};
template <class L, class T>
struct KFinishing {
  int row, column;
  bool inside;
  L loaded;
  T waiting;
};
// What a lane has of pieces before their turn: what begin needs of columns; and where a lane
// finishes all its places of a piece at once, what finish needs of these.
template <class W, class F>
struct KAhead {
  using Places = KPlaces<W>;
  static constexpr bool kAtOnce = Places::kTimes == Places::kEach;
  decltype(((F*)nullptr)->of_columns(0)) columns[W::kChunk / 8];
  decltype(((F*)nullptr)->of_place(0, 0)) places[kAtOnce ? Places::kEach : 1];

  KILN_INLINE void LoadColumns(int piece, int lane, const KPlace& at, const F& work) {
    const KPlace of = W::At(piece, at);
#pragma clang loop unroll(full)
    for (int i = 0; i < W::kChunk / 8; ++i) {
      const int first = of.column + 8 * i;
      columns[i] =
          work.of_columns((W::kAllInside || first < of.columns ? first : 0) + 2 * (lane & 3));
    }
  }
  KILN_INLINE void LoadPlaces(int piece, int lane, const KPlace& at, const F& work) {
    if constexpr (kAtOnce) {
#pragma clang loop unroll(full)
      for (int i = 0; i < Places::kEach; ++i) {
        places[i] = Places(lane, i).Load(W::At(piece, at), work);
      }
    }
  }
};

// kOctets octets of columns, whose sums are those from sums[kFirst] on: 4 j and 4 j + 1 are at row
// lane / 4, columns 8 j + lane % 4 * 2 and the next, 4 j + 2 and 4 j + 3 those 8 rows below.
template <class S, int kFirst, int kOctets, int N, class L, class F>
KILN_FN void KBeginPiece(const float (&sums)[N], int lane, unsigned buffer, const L& columns,
                         const F& work) {
#pragma clang loop unroll(full)
  for (int i = 0; i < kOctets; i += 2) {
    decltype(work.begin(columns[0], Vec<float, 2>{})) waiting[2][2];
#pragma clang loop unroll(full)
    for (int j = 0; j < 4; ++j) {
      const float* pair = &sums[kFirst + 4 * i + 2 * j];
      waiting[j / 2][j % 2] = work.begin(columns[i + j / 2], Vec<float, 2>{pair[0], pair[1]});
    }
    if constexpr (S::kShort && S::kByBlocks) {
      KStoreBlocks(KWaitingAt<S>(buffer, lane & 15, i + (lane >> 4)), waiting[0][0], waiting[0][1],
                   waiting[1][0], waiting[1][1]);
    } else {
#pragma clang loop unroll(full)
      for (int j = 0; j < 4; ++j) {
        KLetWait<S>(buffer, (lane >> 2) + j % 2 * 8, i + j / 2, lane & 3, waiting[j / 2][j % 2]);
      }
    }
  }
}
// Begins piece number `piece`, kPiece or a later one: only who takes its sums knows their
// registers.
template <class W, int kPiece, int B, int N, class L, class F>
KILN_FN void KBeginPieceOf(int piece, const float (&sums)[B][N], int lane, unsigned buffer,
                           const L& columns, const F& work) {
  if constexpr (kPiece < W::kPieces) {
    if (kPiece + 1 < W::kPieces && piece != kPiece) {
      return KBeginPieceOf<W, kPiece + 1>(piece, sums, lane, buffer, columns, work);
    }
    constexpr int kNumber = kPiece % W::kChunks;
    constexpr int kColumns = kNumber == W::kChunks - 1 ? W::kLast : W::kChunk;
    KBeginPiece<W, kNumber * W::kChunk / 2, kColumns / 8>(sums[kPiece / W::kChunks], lane, buffer,
                                                          columns, work);
  }
}

// What one depends on may lie where another one's results go: no store is before a load.
template <int kTime = 0, int kTimes, class T, class F>
KILN_FN void KFinishAll(const T (&all)[kTimes], const F& work) {
  const T& one = all[kTime];
  const auto store = work.finish(one.loaded, one.row, one.column, one.inside, one.waiting);
  if constexpr (kTime + 1 < kTimes) KFinishAll<kTime + 1>(all, work);
  store();
}
// A piece that waits; go_on() begins the next one once the lane has what waited of this.
template <class W, class A, class F, class G>
KILN_FN void KFinishPiece(int lane, KPlace at, unsigned buffer, const A& ahead, const F& work,
                          const G& go_on) {
  using P = KPlaces<W>;
  constexpr int kTimes = A::kAtOnce ? P::kEach : P::kTimes;
#pragma clang loop unroll(disable)
  for (int first = 0; first < P::kEach; first += kTimes) {
    KFinishing<decltype(work.of_place(0, 0)), decltype(KWaiting<W>(buffer, 0, 0))> all[kTimes];
#pragma clang loop unroll(full)
    for (int i = 0; i < kTimes; ++i) {
      const P place(lane, first + i);
      const bool inside = place.IsInside(at);
      all[i].row = inside ? at.row + place.row : 0;
      all[i].column = inside ? at.column + place.column : 0;
      all[i].inside = inside;
      if constexpr (A::kAtOnce) {
        all[i].loaded = ahead.places[i];
      } else {
        all[i].loaded = place.Load(at, work);
      }
      all[i].waiting = KWaiting<W>(buffer, place.row, place.column);
    }
    if constexpr (A::kAtOnce) go_on();
    KFinishAll(all, work);
  }
  if constexpr (!A::kAtOnce) go_on();
}

// All sums of a warp, a KOfWarp: `at` is where its first ones lie in the result.
template <class W, int B, int N, class F>
KILN_FN void KFinishSums(const float (&sums)[B][N], KPlace at, unsigned buffer, const F& work) {
  // Lanes have places beyond the last columns, which are others'.
  const int end = at.column + W::kColumns;
  if (W::kLast < W::kChunk && end < at.columns) at.columns = end;
  KAhead<W, F> ahead;
  const int first_lane = KAgain(KThread()) & 31;
  ahead.LoadColumns(0, first_lane, at, work);
  KMeetWarp();
  KBeginPieceOf<W, 0>(0, sums, first_lane, buffer, ahead.columns, work);
  ahead.LoadPlaces(0, first_lane, at, work);
  if (W::kPieces > 1) ahead.LoadColumns(1, first_lane, at, work);
#pragma clang loop unroll(disable)
  for (int piece = 0; piece < W::kPieces; ++piece) {
    const int lane = KAgain(KThread()) & 31;  // not kept beside the sums
    const KAhead<W, F> now = ahead;
    const auto go_on = [&] KILN_INLINE {
      if (piece + 1 == W::kPieces) return;
      KMeetWarp();
      KBeginPieceOf<W, 1>(piece + 1, sums, lane, buffer, now.columns, work);
      ahead.LoadPlaces(piece + 1, lane, at, work);
      if (piece + 2 < W::kPieces) ahead.LoadColumns(piece + 2, lane, at, work);
    };
    KMeetWarp();
    KFinishPiece<W>(lane, W::At(piece, at), buffer, now, work, go_on);
  }
}
