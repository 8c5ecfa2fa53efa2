// Bodies of the routines that prelude_routines.inc.h declares; the text of one routine's object is
// the prelude, this, and an explicit instantiation.

// ---- Grids of tasks ------------------------------------------------------------------------

template <long kCostOfTask>
void KRunGrid<kCostOfTask>::Task(void* closure, long task, int thread) {
  const KGrid& g = *(const KGrid*)closure;
  const long row_task = task / g.lane_tasks, lane_task = task % g.lane_tasks;
  const long steps = (g.lanes + g.lane_step - 1) / g.lane_step;
  const long lane_end = steps * (lane_task + 1) / g.lane_tasks * g.lane_step;
  g.run(g.args, g.rows * row_task / g.row_tasks, g.rows * (row_task + 1) / g.row_tasks,
        steps * lane_task / g.lane_tasks * g.lane_step, lane_end < g.lanes ? lane_end : g.lanes,
        thread);
}

template <long kCostOfTask>
void KRunGrid<kCostOfTask>::Run(const KilnCpuContext* context, KGrid g, double cost) {
  if (g.rows <= 0 || g.lanes <= 0) return;
  const double work = cost * (double)g.rows * (double)g.lanes;
  long tasks = work < kCostOfTask * 2 ? 1 : (long)(work / kCostOfTask);
  // Rows that are long themselves, as panels of a product, go to whoever is free.
  const long most = cost * (double)g.lanes < kCostOfTask * 16 ? 4l : 64l;
  if (tasks > most * context->threads) tasks = most * context->threads;
  if (tasks <= 1 || context->threads == 1) {
    g.run(g.args, 0, g.rows, 0, g.lanes, 0);
    return;
  }
  const long steps = (g.lanes + g.lane_step - 1) / g.lane_step;
  g.row_tasks = g.rows < tasks ? g.rows : tasks;
  g.lane_tasks = (tasks + g.row_tasks - 1) / g.row_tasks;
  if (g.lane_tasks > steps) g.lane_tasks = steps;
  context->parallel_for(context, g.row_tasks * g.lane_tasks, Task, &g);
}

// ---- Matrix products -----------------------------------------------------------------------

// A panel is asked for so far ahead, that of the next task included: processors' own prefetchers
// end with the page, so that a panel's first reader would wait at the beginning of each.
constexpr long kPanelBytesAhead = 4096;

template <class T, class P, int VL, int MR, int NV>
void KMicroKernel<T, P, VL, MR, NV>::Run(long k, const T* a, long row_stride, long k_stride,
                                         const P* panel, T* tile) {
#pragma clang fp contract(fast)
  const long run = 256;
  for (bool first = true; first || k > 0; first = false, k -= run) {
    Vec<T, VL> acc[MR][NV] = {};
    KILN_ROLLED for (long rest = k < run ? k : run; rest > 0; --rest) {
      Vec<T, VL> b[NV];
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) b[v] = KCast<T>(KLoadAll<VL>(panel + v * VL));
      KPrefetch<NV * VL>(panel + kPanelBytesAhead / (long)sizeof(P));
#pragma clang loop unroll(full)
      for (int r = 0; r < MR; ++r) {
        const Vec<T, VL> x = (Vec<T, VL>)(a[r * row_stride]);
#pragma clang loop unroll(full)
        for (int v = 0; v < NV; ++v) acc[r][v] = x * b[v] + acc[r][v];
      }
      a += k_stride;
      panel += NV * VL;
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < MR; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) {
        T* const to = tile + (r * NV + v) * VL;
        KStoreAll(to, first ? acc[r][v] : KLoadAll<VL>((const T*)to) + acc[r][v]);
      }
    }
  }
}

template <int MR, class T>
void KCopyRows<MR, T>::Run(const T* from, long rows, long row_stride, long k_stride, long k,
                           T* to) {
  KILN_ROLLED for (long r = 0; r < MR; ++r) {
    const T* row = from + (r < rows ? r : rows - 1) * row_stride;
    KILN_ROLLED for (long i = 0; i < k; ++i) to[r * k + i] = row[i * k_stride];
  }
}

// A 4 x 4 block turned about its diagonal.
template <class T>
KILN_FN void KTranspose4(const T* from, long from_stride, T* to, long to_stride) {
  const Vec<T, 4> a = KLoadAll<4>(from), b = KLoadAll<4>(from + from_stride),
                  c = KLoadAll<4>(from + 2 * from_stride), d = KLoadAll<4>(from + 3 * from_stride);
  const Vec<T, 4> ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Vec<T, 4> ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vec<T, 4> cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Vec<T, 4> cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  KStoreAll(to, (Vec<T, 4>)__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  KStoreAll(to + to_stride, (Vec<T, 4>)__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  KStoreAll(to + 2 * to_stride, (Vec<T, 4>)__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  KStoreAll(to + 3 * to_stride, (Vec<T, 4>)__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

template <int kRows, int kLanes, class T>
void KTransposeTile<kRows, kLanes, T>::Run(const T* from, T* to) {
  static_assert(kRows % 4 == 0);
  constexpr long kWhole = kLanes / 4 * 4;  // six lanes are three vectors of two doubles
  KILN_ROLLED for (long row = 0; row < kRows; row += 4) {
    KILN_ROLLED for (long lane = 0; lane < kWhole; lane += 4) {
      KTranspose4(from + row * kLanes + lane, kLanes, to + lane * kRows + row, kRows);
    }
    KILN_ROLLED for (long lane = kWhole; lane < kLanes; ++lane) {
      KILN_ROLLED for (long r = row; r < row + 4; ++r) to[lane * kRows + r] =
          from[r * kLanes + lane];
    }
  }
}

// Pieces of B of two rows change places: the odd ones of `a` with the even ones of `b`.
template <int B, int W, class T, int... I>
KILN_FN void KSwapPieces(Vec<T, W>& a, Vec<T, W>& b, KNumbers<int, I...>) {
  const Vec<T, W> even = __builtin_shufflevector(a, b, (I / B % 2 != 0 ? W + I - B : I)...);
  b = __builtin_shufflevector(a, b, (I / B % 2 != 0 ? W + I : I + B)...);
  a = even;
}
template <int B, int W, class T>
KILN_FN void KTurnRows(Vec<T, W>* rows) {
  if constexpr (B < W) {
#pragma clang loop unroll(full)
    for (int i = 0; i < W; ++i) {
      if ((i & B) == 0) KSwapPieces<B, W, T>(rows[i], rows[i + B], KLanes<W>{});
    }
    KTurnRows<2 * B, W, T>(rows);
  }
}
// A W x W block turned about its diagonal, in registers.
template <int W, class T>
KILN_FN void KTransposeSquare(const T* from, long from_stride, T* to, long to_stride) {
  Vec<T, W> rows[W];
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) rows[i] = KLoadAll<W>(from + i * from_stride);
  KTurnRows<1, W, T>(rows);
#pragma clang loop unroll(full)
  for (int i = 0; i < W; ++i) KStoreAll(to + i * to_stride, rows[i]);
}
// The same of any size, by blocks of 4 x 4 and at the border one by one.
template <class T>
KILN_FN void KTransposeAny(const T* from, long from_stride, long lanes, long k, T* to,
                           long to_stride) {
  KILN_ROLLED for (long l = 0; l < lanes; l += 4) {
    KILN_ROLLED for (long i = 0; i < k; i += 4) {
      if (l + 4 <= lanes && i + 4 <= k) {
        KTranspose4(from + l * from_stride + i, from_stride, to + i * to_stride + l, to_stride);
        continue;
      }
      const long l_end = KMinIndex(l + 4, lanes), i_end = KMinIndex(i + 4, k);
      KILN_ROLLED for (long lane = l; lane < l_end; ++lane) {
        KILN_ROLLED for (long m = i; m < i_end; ++m) {
          to[m * to_stride + lane] = from[lane * from_stride + m];
        }
      }
    }
  }
}

template <class T>
void KPackTransposed<T>::Run(const T* typed_from, long lane_stride, long lanes, long k, T* typed_to,
                             long k_stride) {
  using Bits = KInt<T>;
  const Bits* const from = (const Bits*)typed_from;
  Bits* const to = (Bits*)typed_to;
  constexpr int kBlock = 16, kAhead = 2 * kBlock, kRun = 1024 / sizeof(T);
  constexpr long kLine = 64 / sizeof(T), kAlone = kLine > kBlock ? kLine : kBlock;
  // A register holds a row of it.
  constexpr bool kSquares = KILN_VECTOR >= 32 && kBlock * sizeof(T) <= KILN_VECTOR;
  KILN_ROLLED for (long begin = 0; begin < k; begin += kRun) {
    const long end = KMinIndex(begin + kRun, k);
    KILN_ROLLED for (long lane = 0; lane < lanes; lane += kBlock) {
      // The pieces to come may be far apart, which no prefetcher foresees. Past the end it does no
      // harm. Who takes a line at a time asks for what comes himself.
      const long ahead = lane + kAhead;
      const Bits* const next = ahead < lanes ? from + ahead * lane_stride
                                             : from + (ahead - lanes) * lane_stride + end - begin;
      const long here = KMinIndex(kBlock, lanes - lane);
      KILN_ROLLED for (long i = begin; i < end; i += kBlock) {
        const Bits* const block = from + lane * lane_stride + i;
        Bits* const turned = to + i * k_stride + lane;
        if (lane_stride >= kLine && k > kAlone) {
#pragma clang loop unroll(full)
          for (int l = 0; l < kBlock; ++l) __builtin_prefetch(next + l * lane_stride + i, 0, 2);
        }
        const long wide = KMinIndex(kBlock, end - i);
        if (kSquares && here == kBlock && wide == kBlock) {
          KTransposeSquare<kBlock>(block, lane_stride, turned, k_stride);
        } else {
          KTransposeAny(block, lane_stride, here, wide, turned, k_stride);
        }
      }
    }
  }
}

// ---- Winograd's convolution ------------------------------------------------------------------

// Of 3 x 3 taps at 2 x 2 places: 16 products instead of 36 (Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks", 2016, F(2 x 2, 3 x 3)).

// One row of an image, `count` columns from number `first` on, zeros outside of the image: columns
// of even and of odd numbers apart.
template <int VL>
KILN_FN void KSplitColumns(const float* row, long width, long first, long count, float* even,
                           float* odd) {
  KILN_ROLLED for (long i = 0; i < count; i += 2 * VL) {
    Vec<float, VL> x[2];
#pragma clang loop unroll(full)
    for (int part = 0; part < 2; ++part) {
      const long begin = first + i + part * VL;
      const Vec<bool, VL> inside = KActive<VL>(width - begin) & ~KActive<VL>(-begin);
      x[part] = KLoadWhere<VL>(row + begin, inside, 0.0f);
    }
    const Vec<float, VL / 2> evens[2] = {x[0].even, x[1].even}, odds[2] = {x[0].odd, x[1].odd};
    __builtin_memcpy(even + i / 2, evens, sizeof(evens));
    __builtin_memcpy(odd + i / 2, odds, sizeof(odds));
  }
}

template <int VL, int kMost>
void KWinogradImage<VL, kMost>::Run(const float* image, long channels, long channel_stride,
                                    long height, long row_stride, long width, long first_row,
                                    long first_column, long tile_rows, long tile_columns,
                                    long pitch, long plane, float* to) {
  constexpr long kRow = kMost + 2 * VL;
  // Rows by the last bits of their numbers; even and odd columns.
  alignas(64) float lines[4][2][kRow] = {};
  const long columns = 2 * tile_columns + 2;
  KILN_ROLLED for (long c = 0; c < channels; ++c, image += channel_stride, to += pitch) {
    long have = 0;  // rows
    KILN_ROLLED for (long r = 0; r < tile_rows; ++r) {
      KILN_ROLLED for (; have < 2 * r + 4; ++have) {
        const long row = first_row + have;
        const bool is_inside = row >= 0 && row < height;
        KSplitColumns<VL>(is_inside ? image + row * row_stride : image, is_inside ? width : 0,
                          first_column, columns, lines[have & 3][0], lines[have & 3][1]);
      }
      KILN_ROLLED for (long t = 0; t < tile_columns; t += VL) {
        Vec<float, VL> rows[4][4];
#pragma clang loop unroll(full)
        for (int j = 0; j < 4; ++j) {
          Vec<float, VL> d[4];
#pragma clang loop unroll(full)
          for (int i = 0; i < 4; ++i) {
            d[i] = KLoadAll<VL>((const float*)lines[(2 * r + i) & 3][j & 1] + t + j / 2);
          }
          rows[0][j] = d[0] - d[2];
          rows[1][j] = d[1] + d[2];
          rows[2][j] = d[2] - d[1];
          rows[3][j] = d[1] - d[3];
        }
        float* const at = to + r * tile_columns + t;
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; ++i) {
          KStoreAll(at + (4 * i) * plane, rows[i][0] - rows[i][2]);
          KStoreAll(at + (4 * i + 1) * plane, rows[i][1] + rows[i][2]);
          KStoreAll(at + (4 * i + 2) * plane, rows[i][2] - rows[i][1]);
          KStoreAll(at + (4 * i + 3) * plane, rows[i][1] - rows[i][3]);
        }
      }
    }
  }
}

template <int VL, int NV>
void KWinogradSums<VL, NV>::Run(const float* products, long pitch, long tile_columns,
                                const float* image, long channels, long channel_stride, long height,
                                long row_stride, long width, long first_row, long first_column,
                                const float* panel, long rows, long columns, float* to) {
#pragma clang fp contract(fast)
  constexpr long kWidth = VL * NV;
  const long plane = pitch * kWidth;
  Vec<float, VL> bad = {};
  KILN_ROLLED for (long y = 0; y < rows; y += 2, products += tile_columns * kWidth) {
    KILN_ROLLED for (long x = 0; x < columns; x += 2) {
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) {
        const float* const from = products + x / 2 * kWidth + v * VL;
        Vec<float, VL> upper[4], lower[4];
#pragma clang loop unroll(full)
        for (int j = 0; j < 4; ++j) {
          Vec<float, VL> m[4];
#pragma clang loop unroll(full)
          for (int i = 0; i < 4; ++i) m[i] = KLoadAll<VL>(from + (4 * i + j) * plane);
          upper[j] = m[0] + m[1] + m[2];
          lower[j] = m[1] - m[2] - m[3];
        }
        const Vec<float, VL> sums[2][2] = {
            {upper[0] + upper[1] + upper[2], upper[1] - upper[2] - upper[3]},
            {lower[0] + lower[1] + lower[2], lower[1] - lower[2] - lower[3]}};
#pragma clang loop unroll(full)
        for (int i = 0; i < 4; ++i) {
          const Vec<float, VL> sum = sums[i / 2][i % 2];
          bad = sum * 0.0f + bad;
          if (y + i / 2 < rows && x + i % 2 < columns) {
            KStoreAll(to + ((y + i / 2) * columns + x + i % 2) * kWidth + v * VL, sum);
          }
        }
      }
    }
  }
  bool is_finite = true;
#pragma clang loop unroll(full)
  for (int i = 0; i < VL; ++i) is_finite &= bad[i] == 0;
  if (is_finite) return;
  // What is not finite, or was not on the way: term by term.
  KILN_ROLLED for (long y = 0; y < rows; ++y) {
    KILN_ROLLED for (long x = 0; x < columns; ++x, to += kWidth) {
      Vec<float, VL> sums[NV] = {};
      const float* weights = panel;
      KILN_ROLLED for (long i = 0; i < 9 * channels; ++i, weights += kWidth) {
        const long row = first_row + y + i % 9 / 3, column = first_column + x + i % 3;
        const bool is_inside = row >= 0 && row < height && column >= 0 && column < width;
        const float at = is_inside ? image[i / 9 * channel_stride + row * row_stride + column] : 0;
#pragma clang loop unroll(full)
        for (int v = 0; v < NV; ++v) {
          sums[v] = (Vec<float, VL>)(at)*KLoadAll<VL>(weights + v * VL) + sums[v];
        }
      }
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) KStoreAll(to + v * VL, sums[v]);
    }
  }
}

// ---- Sorting -------------------------------------------------------------------------------

KILN_FN void KInsertionSort(long* row, long n) {
  for (long i = 1; i < n; ++i) {
    const long x = row[i];
    long at = i;
    for (; at > 0 && row[at - 1] > x; --at) row[at] = row[at - 1];
    row[at] = x;
  }
}

template <class Key>
void KSort<Key>::Run(Key* row, Key* scratch, long n) {
  static_assert(sizeof(Key) == sizeof(long));
  if (n <= 24) return KInsertionSort(row, n);
  const long digits = 8, values = 256;
  unsigned count[digits][values];
  __builtin_memset(count, 0, sizeof(count));
  const unsigned long flip = 1ul << 63;  // the sign bit of a greater number is 0
  bool ascends = true, low_ascends = true;
  for (long i = 0; i < n; ++i) {
    const unsigned long x = (unsigned long)row[i] ^ flip;
    for (long d = 0; d < digits; ++d) ++count[d][x >> (8 * d) & 255];
    if (i == 0) continue;
    ascends &= row[i - 1] <= row[i];
    low_ascends &= (unsigned)row[i - 1] <= (unsigned)row[i];
  }
  if (ascends) return;
  Key *from = row, *to = scratch;
  for (long d = low_ascends ? 4 : 0; d < digits; ++d) {
    unsigned* const at = count[d];
    const unsigned long first = (unsigned long)from[0] ^ flip;
    if ((long)at[first >> (8 * d) & 255] == n) continue;
    unsigned sum = 0;
    for (long v = 0; v < values; ++v) {
      const unsigned here = at[v];
      at[v] = sum;
      sum += here;
    }
    for (long i = 0; i < n; ++i) {
      const unsigned long x = (unsigned long)from[i] ^ flip;
      to[at[x >> (8 * d) & 255]++] = from[i];
    }
    Key* const other = from;
    from = to;
    to = other;
  }
  if (from != row) __builtin_memcpy(row, from, n * sizeof(Key));
}

template <class Key>
void KSelectLeast<Key>::Run(Key* row, Key* scratch, long n, long k) {
  const long most = k < 64 ? 256 : 4 * k;
  if (k * 2 > n || most > n) return KSort<Key>::Run(row, scratch, n);
  long held = 0, least_outside = 0x7fffffffffffffff;
  for (long i = 0; i < n; ++i) {
    if (row[i] >= least_outside) continue;
    scratch[held++] = row[i];
    if (held < most) continue;
    KSort<Key>::Run(scratch, row,
                    held);  // what stood in the row's beginning is not needed any more
    held = k;
    least_outside = scratch[k - 1];
  }
  KSort<Key>::Run(scratch, row, held);
  __builtin_memcpy(row, scratch, k * sizeof(Key));
}
