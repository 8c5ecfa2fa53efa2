// Goes on where prelude_tensor.inc.h ends: what is done with the sums of products on tensor cores,
// and in which order tiles of a result come.
//
// Of a Shape it takes: kRows, kColumns of a tile; kCluster: blocks with tiles one below the other;
// kResults: how many results of 16 bits a sum has; kChunk: columns that a warp finishes at a time;
// kRagged: whether the number of columns is no multiple of 8; kRolled: what is done with sums is
// printed once for all of a thread's, and not for each; kByBlocks: whether results go to shared
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
      if constexpr (S::kByBlocks) {
        KStoreBlocks(buffer + to_row * 128 + ((i + to_octet) ^ (to_row & 7)) * 16,
                     results[i][0][number], results[i][1][number], results[i + 1][0][number],
                     results[i + 1][1][number]);
      } else {
#pragma clang loop unroll(full)
        for (int j = i; j < i + 2; ++j) {
          const unsigned to = buffer + (lane >> 2) * 128 + (j ^ (lane >> 2)) * 16 + (lane & 3) * 4;
          KStoreWord(to, results[j][0][number]);
          KStoreWord(to + 8 * 128, results[j][1][number]);
        }
      }
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
// All that a warp has of a Shape's sums: kHigh times 16 rows, kRowsApart from each other, and kWide
// columns.
template <class S, int kHigh, int kRowsApart, int kWide>
struct KOfWarp : S {
  static constexpr int kBlocks = kHigh, kApart = kRowsApart, kColumns = kWide;
  // What it finishes at a time: 16 rows by kChunk columns, or fewer at the end.
  static constexpr int kChunks = (kWide + S::kChunk - 1) / S::kChunk, kPieces = kHigh * kChunks;
};
template <class W, int kPiece>
struct KPiece {
  static constexpr int kBlock = kPiece / W::kChunks, kFirst = kPiece % W::kChunks * W::kChunk;
  static constexpr int kLeft = W::kColumns - kFirst;
  static constexpr int kColumns = kLeft < W::kChunk ? kLeft : W::kChunk;
};
// The sums of piece number `piece`, zeros where it is narrower: only who takes them knows their
// registers.
template <class W, int kPiece = 0, int B, int N, int M>
KILN_FN void KTakePiece(int piece, const float (&sums)[B][N], float (&of_piece)[M]) {
  using Piece = KPiece<W, kPiece>;
  if constexpr (kPiece + 1 < W::kPieces) {
    if (piece != kPiece) return KTakePiece<W, kPiece + 1>(piece, sums, of_piece);
  }
#pragma clang loop unroll(full)
  for (int i = 0; i < M; ++i) {
    of_piece[i] = i < Piece::kColumns / 2
                      ? sums[Piece::kBlock][Piece::kFirst / 2 + i < N ? Piece::kFirst / 2 + i : 0]
                      : 0.0f;
  }
}
// From column kFirst of the warp's on.
template <class W, int kFirst = 0, int B, int N, class F, class G>
KILN_FN void KFinishPieces(const float (&sums)[B][N], int lane, KPlace at, unsigned buffer,
                           F finish, G store) {
  if constexpr (kFirst < W::kColumns) {
    constexpr int kLeft = W::kColumns - kFirst, kMost = W::kChunk;
    constexpr int kColumns = kLeft >= kMost ? kMost : kLeft >= 32 ? 32 : 16;
#pragma clang loop unroll(full)
    for (int i = 0; i < B; ++i) {
      const KPlace of = {at.row + i * W::kApart, at.column + kFirst, at.rows, at.columns};
      KFinishPiece<W, kFirst / 2, kColumns>(sums[i], lane, of, buffer, finish, store);
    }
    KFinishPieces<W, kFirst + kColumns>(sums, lane, at, buffer, finish, store);
  }
}
// All sums of a warp, a KOfWarp: `at` is where its first ones lie in the result.
template <class W, int B, int N, class F, class G>
KILN_FN void KFinishSums(const float (&sums)[B][N], int lane, KPlace at, unsigned buffer, F finish,
                         G store) {
  if constexpr (W::kRolled) {
#pragma clang loop unroll(disable)
    for (int piece = 0; piece < W::kPieces; ++piece) {
      float of_piece[W::kChunk / 2];
      KTakePiece<W>(piece, sums, of_piece);
      const KPlace of = {at.row + piece / W::kChunks * W::kApart,
                         at.column + piece % W::kChunks * W::kChunk, at.rows, at.columns};
      KFinishPiece<W, 0, W::kChunk>(of_piece, lane, of, buffer, finish, store);
    }
  } else {
    KFinishPieces<W>(sums, lane, at, buffer, finish, store);
  }
}
