// Goes on where prelude_sums.inc.h ends: what attention of many queries does with scores in
// registers, where tensor cores leave them: in which order tiles come, masks, and a softmax whose
// sums shrink as greater scores come.
//
// Of 16 rows and a step's keys a warp has scores[4 j] and [4 j + 1] at row lane / 4, keys 8 j +
// lane % 4 * 2 and the next, [4 j + 2] and [4 j + 3] 8 rows below.
//
// A Shape has: kRows, queries of a tile; kKeys of a step; kCausal: a row sees keys up to its own
// number; kWholeSteps: steps end where keys do; kMask: what a KMask gives, 0: nothing, 1: whether a
// key is seen, 2: what is added to a score; kHalf: float16, else bfloat16.

// Of lanes 4 i to 4 i + 3, which have parts of one row.
KILN_FN float KGreatestOfFour(float x) {
  x = __builtin_fmaxf(x, KExchange(0xffffffffu, x, 1));
  return __builtin_fmaxf(x, KExchange(0xffffffffu, x, 2));
}
KILN_FN float KSumOfFour(float x) {
  x += KExchange(0xffffffffu, x, 1);
  return x + KExchange(0xffffffffu, x, 2);
}

struct KAttentionSizes {
  int batches, heads, queries, keys;
  int of_key;       // heads that share one of keys and values
  int group_heads;  // heads whose tiles come together
};

// A mask, contiguous along keys, at strides that are 0 where its elements are for all. kAligned:
// whether those of two keys, from an even one on, are one access.
template <class T, bool kAligned>
struct KMask {
  const T* data;
  long of_batch, of_head, of_row;
};
struct KNoMask {};
// How an element of so many bytes is loaded, two of them are, and where their bits lie.
template <int kBytes>
struct KMaskBitsOfSize;
template <>
struct KMaskBitsOfSize<1> {
  using One = unsigned char;
  using Two = unsigned short;
  using Pair = unsigned;
};
template <>
struct KMaskBitsOfSize<2> {
  using One = unsigned short;
  using Two = unsigned;
  using Pair = unsigned;
};
template <>
struct KMaskBitsOfSize<4> {
  using One = unsigned;
  using Two = unsigned long;
  using Pair = unsigned long;
};
template <class T>
using KMaskBits = KMaskBitsOfSize<sizeof(T)>;
// The elements of a mask's row for a key and the next one; zeros past the last key, where a step
// may have such.
template <bool kMayEnd, bool kAligned, class T>
KILN_FN typename KMaskBits<T>::Pair KMaskPair(const T* row, int key, int keys) {
  using Bits = KMaskBits<T>;
  typename Bits::Pair pair = 0;
  if constexpr (kAligned) {
    if (!kMayEnd || key < keys) pair = *(const typename Bits::Two*)(row + key);
  } else {
#pragma clang loop unroll(full)
    for (int i = 0; i < 2; ++i) {
      if (kMayEnd && key + i >= keys) continue;
      const auto bits = *(const typename Bits::One*)(row + key + i);
      pair |= (typename Bits::Pair)bits << 8 * sizeof(T) * i;
    }
  }
  return pair;
}

struct KAttentionTile {
  int row, head, batch, steps;
};
template <class S>
KILN_FN int KRowTiles(const KAttentionSizes& sizes) {
  constexpr int kRows = S::kRows;
  return (sizes.queries + kRows - 1) / kRows;
}
template <class S>
KILN_FN int KAttentionTiles(const KAttentionSizes& sizes) {
  return sizes.batches * sizes.heads * KRowTiles<S>(sizes);
}
// Of heads that come together.
template <class S>
KILN_FN int KTilesTogether(const KAttentionSizes& sizes) {
  return sizes.group_heads * KRowTiles<S>(sizes);
}
// Tile `number`: those of some heads together, whose keys and values the second-level cache holds,
// and of these the ones with most keys first.
template <class S>
KILN_FN KAttentionTile KAttentionTileAt(int number, const KAttentionSizes& sizes) {
  constexpr int kRows = S::kRows;
  const int row_tiles = KRowTiles<S>(sizes), per_group = KTilesTogether<S>(sizes);
  const int all_heads = sizes.batches * sizes.heads;
  const int first = number / per_group * sizes.group_heads, rest = number % per_group;
  const int heads = all_heads - first < sizes.group_heads ? all_heads - first : sizes.group_heads;
  const int head = first + rest % heads;
  const int tile = S::kCausal ? row_tiles - 1 - rest / heads : rest / heads;
  int end = sizes.keys;
  if (S::kCausal && (tile + 1) * kRows < end) end = (tile + 1) * kRows;
  return {tile * kRows, head % sizes.heads, head / sizes.heads, (end + S::kKeys - 1) / S::kKeys};
}
// The numbers of the tiles that a block takes of so many blocks, one after another; `tiles` or
// more: there is no other.
//
// With causality, tiles of heads that come together, as many as blocks or more, are dealt in rounds
// of their own, and every other round goes the other way, since a round's first tiles have most
// keys: so blocks have about as many steps each.
template <class S>
struct KNumbersOfBlock {
  int tiles, together;  // together: that are dealt before others
  int blocks, block, first = 0, round;
  bool is_turned = true;

  KILN_INLINE KNumbersOfBlock(const KAttentionSizes& sizes, int blocks, int block)
      : tiles(KAttentionTiles<S>(sizes)),
        together(tiles),
        blocks(blocks),
        block(block),
        round(-blocks) {
    if (S::kCausal && KTilesTogether<S>(sizes) < tiles) together = KTilesTogether<S>(sizes);
  }
  KILN_INLINE int Next() {
    int at = NextOfRound();
    if (at >= together) at = NextOfRound();  // of the others' first round
    return first + at;
  }

 private:
  KILN_INLINE int NextOfRound() {
    round += blocks;
    is_turned = S::kCausal && !is_turned;
    if (round >= together) {
      round = 0;
      is_turned = false;
      first += together;
    }
    return round + (is_turned ? blocks - 1 - block : block);
  }
};

// What a thread has of two rows, `row` and 8 below it.
struct KAttentionRows {
  int batch, head, row, key;  // of its first score; key: within a step
  float most[2], sum[2];      // so far: of scores, and the thread's part of that of weights
};

// What a thread has of a mask in a step, where it has scores.
template <class S, class T>
struct KMaskStep {
  typename KMaskBits<T>::Pair pairs[2][S::kKeys / 8];
};
struct KNoMaskStep {};
template <class S>
KILN_FN KNoMaskStep KStepOf(const KNoMask&) {
  return {};
}
template <class S, class T, bool kAligned>
KILN_FN KMaskStep<S, T> KStepOf(const KMask<T, kAligned>&) {
  return {};
}
template <class S, bool kMayEnd>
KILN_FN void KLoadMask(KNoMaskStep&, const KAttentionRows&, int, const KAttentionSizes&,
                       const KNoMask&) {}
// For the step from key `first` on: before its scores are there, so that it arrives meanwhile.
template <class S, bool kMayEnd, class T, bool kAligned>
KILN_FN void KLoadMask(KMaskStep<S, T>& step, const KAttentionRows& rows, int first,
                       const KAttentionSizes& sizes, const KMask<T, kAligned>& mask) {
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
    const int found = rows.row + 8 * half;
    const int row = found < sizes.queries ? found : sizes.queries - 1;
    const T* of_row =
        mask.data + rows.batch * mask.of_batch + rows.head * mask.of_head + row * mask.of_row;
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kKeys / 8; ++j) {
      step.pairs[half][j] =
          KMaskPair<kMayEnd, kAligned>(of_row, first + rows.key + 8 * j, sizes.keys);
    }
  }
}
template <class S>
KILN_FN void KAddMask(float (&scores)[S::kKeys / 2], const KNoMaskStep&, float) {}
template <class S, class T>
KILN_FN void KAddMask(float (&scores)[S::kKeys / 2], const KMaskStep<S, T>& step, float scale) {
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kKeys / 8; ++j) {
#pragma clang loop unroll(full)
      for (int i = 0; i < 2; ++i) {
        const auto bits = (typename KMaskBits<T>::One)(step.pairs[half][j] >> 8 * sizeof(T) * i);
        float& score = scores[4 * j + 2 * half + i];
        if constexpr (S::kMask == 2) {
          const Vec<T, 1> added = __builtin_bit_cast(T, bits);
          score = __builtin_fmaf(score, scale, KCast<float>(added)[0]);
        } else {
          score = bits != 0 ? score : -__builtin_inff();
        }
      }
    }
  }
}

// Scores of keys that a row does not see become -inf.
template <class S>
KILN_FN void KForbid(float (&scores)[S::kKeys / 2], const KAttentionRows& rows, int first,
                     const KAttentionSizes& sizes) {
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
    int end = S::kCausal && S::kWholeSteps ? rows.row + 8 * half + 1 : sizes.keys;
    if (S::kCausal && rows.row + 8 * half + 1 < end) end = rows.row + 8 * half + 1;
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kKeys / 8; ++j) {
#pragma clang loop unroll(full)
      for (int i = 0; i < 2; ++i) {
        float& score = scores[4 * j + 2 * half + i];
        score = first + rows.key + 8 * j + i < end ? score : -__builtin_inff();
      }
    }
  }
}

// Scores become weights, and `shrink` what older sums are multiplied by. Scores are in units of
// `scale`, or have it already where something was added to them: the greatest of those may be as
// large as float32 has them.
template <class S>
KILN_FN void KWeigh(float (&scores)[S::kKeys / 2], KAttentionRows& rows, float (&shrink)[2],
                    float scale) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr bool kMayBeNone = S::kCausal || S::kMask > 0;
  const float factor = S::kMask == 2 ? kLog2E : scale * kLog2E;
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
    float even = scores[2 * half], odd = scores[2 * half + 1];
#pragma clang loop unroll(full)
    for (int j = 1; j < S::kKeys / 8; ++j) {
      even = __builtin_fmaxf(even, scores[4 * j + 2 * half]);
      odd = __builtin_fmaxf(odd, scores[4 * j + 2 * half + 1]);
    }
    const float before = rows.most[half];
    const float most = __builtin_fmaxf(before, KGreatestOfFour(__builtin_fmaxf(even, odd)));
    rows.most[half] = most;
    const float from = kMayBeNone && most == -__builtin_inff() ? 0.0f : most;
    const float less = -from * factor;
    const auto weight = [&](float score) KILN_INLINE {
      return KMachineExp2(S::kMask == 2 ? (score - from) * factor
                                        : __builtin_fmaf(score, factor, less));
    };
    shrink[half] = weight(before);
    float sums[2] = {0.0f, 0.0f};
#pragma clang loop unroll(full)
    for (int j = 0; j < S::kKeys / 8; ++j) {
#pragma clang loop unroll(full)
      for (int i = 0; i < 2; ++i) {
        float& score = scores[4 * j + 2 * half + i];
        score = weight(score);
        sums[i] += score;
      }
    }
    rows.sum[half] = __builtin_fmaf(rows.sum[half], shrink[half], sums[0] + sums[1]);
  }
}
template <class S>
KILN_FN void KRound(unsigned (&weights)[S::kKeys / 4], const float (&scores)[S::kKeys / 2]) {
#pragma clang loop unroll(full)
  for (int i = 0; i < S::kKeys / 4; ++i) {
    weights[i] = KNarrowPair<S::kHalf>(scores[2 * i], scores[2 * i + 1]);
  }
}

// The last sums become factors of the result's rows. log_sums(batch, head, row, value) takes the
// logarithm of a row's sum of exponentials.
template <class S, class F>
KILN_FN void KEndRows(const KAttentionRows& rows, int lane, const KAttentionSizes& sizes,
                      float scale, float (&factor)[2], F log_sums) {
  constexpr float kLn2 = 0x1.62e43p-1f;
#pragma clang loop unroll(full)
  for (int half = 0; half < 2; ++half) {
    const float sum = KSumOfFour(rows.sum[half]), most = rows.most[half];
    const bool is_empty = S::kMask > 0 && sum == 0.0f;
    factor[half] = is_empty ? 0.0f : 1.0f / sum;
    const float log_sum =
        __builtin_fmaf(KMachineLog2(sum), kLn2, S::kMask == 2 ? most : most * scale);
    if ((lane & 3) == 0 && rows.row + 8 * half < sizes.queries) {
      log_sums(rows.batch, rows.head, rows.row + 8 * half, is_empty ? 0.0f : log_sum);
    }
  }
}
