// Goes on where prelude_warps.inc.h ends: attention of many queries on the tensor cores of sm_80
// and later by mma.sync, all of it in one kernel: result = softmax(scale * queries keys^T + mask)
// values, row by row.
//
// A block has a tile of one head's queries, each of its warps kWarpRows of them. Keys and values of
// kKeys at a time, from the last ones on, go through a ring of kStages parts: keys of a step, its
// values, keys of the next step and so on. All threads copy 16 bytes at a time, of what is kStages
// - 1 parts ahead, and meet once a part. Scores stay in registers, where they become weights, the
// first operand of the product with values.
//
// Rows lie one after another in shared memory. Their pieces of 16 bytes are permuted by the row's
// number, so that neither the eight rows of a matrix nor what threads copy meet in a bank.
//
// A Shape has, beside what prelude_scores.inc.h takes: kHead, elements of a row, a multiple of 32;
// kWarpRows: 16 or 32; kStages, 2 or more; kKept: a warp keeps its queries in registers; and what
// prelude_sums.inc.h takes, of one result.

template <class S>
struct KWarpAttention {
  static constexpr int kPieces = S::kHead / 8, kRowBytes = S::kHead * 2;
  static constexpr int kTogether = kPieces % 8 == 0 ? 8 : 4;  // pieces that change places
  static constexpr int kWarps = S::kRows / S::kWarpRows, kThreads = 32 * kWarps;
  static constexpr int kBlocks = S::kWarpRows / 16, kDeep = S::kHead / 16, kSteps = S::kKeys / 16;
  static constexpr int kQueryBytes = S::kRows * kRowBytes, kPartBytes = S::kKeys * kRowBytes;
  static constexpr int kApart = kThreads / kTogether;  // rows between those that a thread copies
  static_assert(S::kHead % 32 == 0 && S::kRows % kApart == 0 && S::kKeys % kApart == 0);
  static_assert(kApart % 8 == 0, "pieces of such rows are permuted alike");
  static_assert(kPartBytes % 128 == 0 && S::kStages >= 2);

  // Where a piece of a row lies, in bytes: eight rows' are in different banks.
  KILN_FN unsigned PlaceOf(int row, int piece) {
    const int turn = kTogether == 8 ? row & 7 : row >> 1 & 3;
    return row * kRowBytes + (piece / kTogether * kTogether + (piece % kTogether ^ turn)) * 16;
  }
  // From the place of piece 0 or 1 of a row to that of the piece that is 2 `deep` after it.
  KILN_FN unsigned Along(unsigned place, int deep) {
    return (place ^ 2 * deep % kTogether * 16) + 2 * deep / kTogether * kTogether * 16;
  }
};

// A head's rows: where they are in the GPU's memory, and bytes from one to the next.
struct KRowsOfHead {
  unsigned long from;
  long pitch;
};
// What there is of queries, keys, values or the result: strides in elements.
struct KHeads {
  const void* data;
  long of_batch, of_head, of_row;
  KILN_INLINE KRowsOfHead At(int batch, int head) const {
    return {KGlobalAddress(data) + 2 * (batch * of_batch + head * of_head), 2 * of_row};
  }
};
struct KAttentionOperands {
  KHeads queries, keys, values, result;
};

// What a thread copies of a head's rows: a piece each of some rows, kApart from each other.
template <class S>
struct KRowsCopied {
  using P = KWarpAttention<S>;
  unsigned long from;
  long apart;  // bytes

  // From row `first` on.
  KILN_INLINE KRowsCopied(const KRowsOfHead& rows, int first) {
    const int row = KThread() / P::kTogether, piece = KThread() % P::kTogether;
    from = rows.from + (first + row) * rows.pitch + piece * 16;
    apart = P::kApart * rows.pitch;
  }
  // kRows rows to shared memory, of which there are `left`; zeros past the last one.
  template <int kRows>
  KILN_INLINE void Copy(unsigned to, int left) const {
    const int row = KThread() / P::kTogether, piece = KThread() % P::kTogether;
    const unsigned place = to + P::PlaceOf(row, piece);
    unsigned long at = from;
#pragma clang loop unroll(full)
    for (int i = 0; i < kRows / P::kApart; ++i, at += apart) {
      const int bytes = row + i * P::kApart < left ? 16 : 0;
#pragma clang loop unroll(full)
      for (int j = 0; j < P::kPieces / P::kTogether; ++j) {
        const int along = j * P::kTogether * 16;
        KCopyAsync(place + i * P::kApart * P::kRowBytes + along, at + along, bytes);
      }
    }
  }
  // On to the rows that are kRows before those.
  template <int kRows>
  KILN_INLINE void GoBack() {
    from -= kRows / P::kApart * apart;
  }
};

// A warp's queries: matrices from shared memory, or kept in registers from there.
template <class S, bool kKept = S::kKept>
struct KWarpQueries {
  unsigned place;  // of the lane's row
  KILN_INLINE void Begin(unsigned at) { place = at; }
  KILN_INLINE KOctet Get(int block, int deep) const {
    using P = KWarpAttention<S>;
    return KLoadMatrices<false>(P::Along(KAgain(place), deep) + block * 16 * P::kRowBytes);
  }
};
template <class S>
struct KWarpQueries<S, true> {
  using P = KWarpAttention<S>;
  KOctet kept[P::kBlocks][P::kDeep];
  KILN_INLINE void Begin(unsigned at) {
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) {
#pragma clang loop unroll(full)
      for (int deep = 0; deep < P::kDeep; ++deep) {
        kept[i][deep] = KLoadMatrices<false>(P::Along(at, deep) + i * 16 * P::kRowBytes);
      }
    }
  }
  KILN_INLINE KOctet Get(int block, int deep) const { return kept[block][deep]; }
};

// scores = queries keys^T, of a step's keys; `keys`: the lane's place in them.
template <class S>
KILN_FN void KMultiplyKeys(float (&scores)[KWarpAttention<S>::kBlocks][S::kKeys / 2],
                           const KWarpQueries<S>& queries, unsigned keys) {
  using P = KWarpAttention<S>;
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kBlocks; ++i) {
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kKeys / 2; ++j) scores[i][j] = 0.0f;
  }
#pragma clang loop unroll(full)
  for (int deep = 0; deep < P::kDeep; ++deep) {
    KOctet of_queries[P::kBlocks];
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) of_queries[i] = queries.Get(i, deep);
#pragma clang loop unroll(full)
    for (int j = 0; j < P::kSteps; ++j) {
      const KOctet y = KLoadMatrices<false>(P::Along(keys, deep) + j * 16 * P::kRowBytes);
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBlocks; ++i) {
        const KOctet x = of_queries[i];
        const unsigned a[4] = {x[0], x[1], x[2], x[3]};
        KMultiplyPairs<S::kHalf>(&scores[i][8 * j], a, y[0], y[1]);
        KMultiplyPairs<S::kHalf>(&scores[i][8 * j + 4], a, y[2], y[3]);
        KKeepPlace(scores[i][8 * j]);
        KKeepPlace(scores[i][8 * j + 4]);
      }
    }
  }
}
// sums += weights values; `values`: the lane's place in them.
template <class S>
KILN_FN void KMultiplyValues(float (&sums)[KWarpAttention<S>::kBlocks][S::kHead / 2],
                             const float (&weights)[KWarpAttention<S>::kBlocks][S::kKeys / 2],
                             unsigned values) {
  using P = KWarpAttention<S>;
#pragma clang loop unroll(full)
  for (int j = 0; j < P::kSteps; ++j) {
    unsigned a[P::kBlocks][4];
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) {
#pragma clang loop unroll(full)
      for (int e = 0; e < 4; ++e) {
        a[i][e] = KNarrowPair<S::kHalf>(weights[i][8 * j + 2 * e], weights[i][8 * j + 2 * e + 1]);
      }
    }
#pragma clang loop unroll(full)
    for (int deep = 0; deep < P::kDeep; ++deep) {
      const KOctet y = KLoadMatrices<true>(P::Along(values, deep) + j * 16 * P::kRowBytes);
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBlocks; ++i) {
        KMultiplyPairs<S::kHalf>(&sums[i][8 * deep], a[i], y[0], y[1]);
        KMultiplyPairs<S::kHalf>(&sums[i][8 * deep + 4], a[i], y[2], y[3]);
        KKeepPlace(sums[i][8 * deep]);
        KKeepPlace(sums[i][8 * deep + 4]);
      }
    }
  }
}

// What a warp has of the result, by way of where its queries were.
template <class S, int B, int N, class F>
KILN_FN void KStoreByWarps(const KHeads& heads, const KAttentionSizes& sizes, float scale,
                           KAttentionRows (&rows)[B], float (&sums)[B][N], F log_sums) {
  using P = KWarpAttention<S>;
  const int thread = KAgain(KThread()), lane = thread & 31, row = (thread >> 5) * S::kWarpRows;
  const KAttentionTile tile = KAttentionTileAt<S>(KBlockAgain(), sizes);
  const KRowsOfHead result = heads.At(tile.batch, tile.head);
#pragma clang loop unroll(full)
  for (int i = 0; i < B; ++i) {
    float factors[2], of_block[1][N];
    rows[i].batch = tile.batch;
    rows[i].head = tile.head;
    rows[i].row = tile.row + row + 16 * i + (lane >> 2);
    KEndRows<S>(rows[i], lane, sizes, scale, factors, log_sums);
#pragma clang loop unroll(full)
    for (int j = 0; j < N; ++j) of_block[0][j] = sums[i][j] * factors[j >> 1 & 1];
    KFinishSums<KOfWarp<S, 1, 16, S::kHead>>(
        of_block, {tile.row + row + 16 * i, 0, sizes.queries, S::kHead},
        KSharedBase() + row * P::kRowBytes,
        KWork{[](int) KILN_INLINE { return KNothing{}; },
              [](KNothing, Vec<float, 2> pair)
                  KILN_INLINE { return KNarrowPair<S::kHalf>(pair[0], pair[1]); },
              [](int, int) KILN_INLINE { return KNothing{}; },
              [=](KNothing, int row, int column, bool inside, KOctet octet) KILN_INLINE {
                return [=]() KILN_INLINE {
                  if (inside) KStoreGlobal(result.from + row * result.pitch + 2 * column, octet);
                };
              }});
  }
}

// log_sums(batch, head, row, value) takes the logarithm of a row's sum of exponentials.
template <class S, class M, class F>
KILN_FN void KAttentionByWarps(const KAttentionOperands& operands, const KAttentionSizes& sizes,
                               float scale, const M& mask, F log_sums) {
  using P = KWarpAttention<S>;
  const unsigned shared = KSharedBase(), ring = shared + P::kQueryBytes;
  const unsigned ring_end = ring + S::kStages * P::kPartBytes;
  const int lane = KThread() & 31, warp = KOfFirstLane(KThread() >> 5);
  const KAttentionTile tile = KAttentionTileAt<S>((int)KBlock(), sizes);
  const int last = (tile.steps - 1) * S::kKeys, key_head = tile.head / sizes.of_key;
  KRowsCopied<S> of_keys(operands.keys.At(tile.batch, key_head), last);
  KRowsCopied<S> of_values(operands.values.At(tile.batch, key_head), last);
  // The part that is `ahead` after a step's keys: of odd numbers values. Before the first keys
  // there is nothing.
  const auto copy = [&](int step, int ahead, unsigned to) KILN_INLINE {
    KRowsCopied<S>& rows = ahead % 2 == 0 ? of_keys : of_values;
    const int first = (step - ahead / 2) * S::kKeys;
    if (first >= 0) rows.template Copy<S::kKeys>(to, sizes.keys - first);
    KCopyCommit();
    rows.template GoBack<S::kKeys>();
  };
  KRowsCopied<S>(operands.queries.At(tile.batch, tile.head), tile.row)
      .template Copy<S::kRows>(shared, sizes.queries - tile.row);
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kStages - 1; ++i) copy(tile.steps - 1, i, ring + i * P::kPartBytes);

  const int warp_row = warp * S::kWarpRows, first_row = tile.row + warp_row;
  // Where a lane's row of the first four matrices lies: those of keys are a second operand, turned
  // values are as a first one.
  const unsigned place_as_first = P::PlaceOf(lane & 15, lane >> 4);
  const auto place_as_second = [] KILN_INLINE {
    const int lane = KAgain(KThread()) & 31;
    return P::PlaceOf((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
  };
  KAttentionRows rows[P::kBlocks];
  float sums[P::kBlocks][S::kHead / 2], scores[P::kBlocks][S::kKeys / 2];
  auto of_mask = KStepOf<S>(mask);  // of one block's rows
#pragma clang loop unroll(full)
  for (int i = 0; i < P::kBlocks; ++i) {
    rows[i] = {tile.batch, tile.head, first_row + 16 * i + (lane >> 2), 2 * (lane & 3), {}, {}};
    rows[i].most[0] = rows[i].most[1] = -__builtin_inff();
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kHead / 2; ++j) sums[i][j] = 0.0f;
  }
  KWarpQueries<S> queries;
  // Where the part lies that is multiplied. The one before it makes room for the last one ahead.
  unsigned part = ring;
  const auto before = [&]()
                          KILN_INLINE { return (part == ring ? ring_end : part) - P::kPartBytes; };
  const auto go_on = [&]() KILN_INLINE {
    part += P::kPartBytes;
    if (part == ring_end) part = ring;
  };
#pragma clang loop unroll(disable)
  for (int step = KAgain(tile.steps - 1); step >= 0; --step) {
    const int first = step * S::kKeys;
    // Whether there are rows of the warp, and some of them see some of the keys.
    const bool is_seen =
        first_row < sizes.queries && (!S::kCausal || first < first_row + S::kWarpRows);
    // Before scores are there, or those before it become weights, so that it arrives meanwhile.
    const auto load_mask = [&](int i) KILN_INLINE {
      if (first + S::kKeys > sizes.keys) {
        KLoadMask<S, true>(of_mask, rows[i], first, sizes, mask);
      } else {
        KLoadMask<S, false>(of_mask, rows[i], first, sizes, mask);
      }
    };
    KCopyWait<S::kStages - 2>();
    KBlockSync();
    copy(step, S::kStages - 1, before());
    if (step == tile.steps - 1) queries.Begin(shared + warp_row * P::kRowBytes + place_as_first);
    if (is_seen) {
      load_mask(0);
      KMultiplyKeys<S>(scores, queries, part + place_as_second());
    }
    go_on();
    KCopyWait<S::kStages - 2>();
    KBlockSync();
    copy(step, S::kStages, before());
    if (is_seen) {
      const bool has_forbidden =
          first + S::kKeys > sizes.keys || (S::kCausal && first + S::kKeys > first_row + 1);
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBlocks; ++i) {
        KAddMask<S>(scores[i], of_mask, scale);
        if (i + 1 < P::kBlocks) load_mask(i + 1);
        if (has_forbidden) KForbid<S>(scores[i], rows[i], first, sizes);
        float shrink[2];
        KWeigh<S>(scores[i], rows[i], shrink, scale);
#pragma clang loop unroll(full)
        for (int j = 0; j < S::kHead / 2; ++j) sums[i][j] *= shrink[j >> 1 & 1];
      }
      KMultiplyValues<S>(sums, scores, part + place_as_first);
    }
    go_on();
  }

  // A warp's results take the place of its queries.
  KCopyWait<0>();
  KStoreByWarps<S>(operands.result, sizes, scale, rows, sums, log_sums);
}
