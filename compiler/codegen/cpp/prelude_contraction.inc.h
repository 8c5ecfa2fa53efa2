// ---- Matrix products -----------------------------------------------------------------------

// tile[r][lane] = sum over k of a[r * row_stride + k * k_stride] * panel[k][lane], for MR rows and
// NV vectors of VL lanes. All accumulators stay in registers; long sums are added up in runs, so
// that the rounding error does not grow with k.
template <class T, int VL, int MR, int NV>
static __attribute__((noinline)) void KMicroKernel(long k, const T* a, long row_stride,
                                                   long k_stride, const T* panel, T* tile) {
#pragma clang fp contract(fast)
  const long run = 256;
  for (bool first = true; first || k > 0; first = false, k -= run) {
    Vec<T, VL> acc[MR][NV] = {};
    KILN_ROLLED for (long rest = k < run ? k : run; rest > 0; --rest) {
      Vec<T, VL> b[NV];
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) b[v] = KLoadAll<VL>(panel + v * VL);
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

// to[r][k] = from[min(r, rows - 1) * row_stride + k * k_stride] for MR rows: the last, partly empty
// block of rows, filled up so that the one micro kernel serves.
template <int MR, class T>
static __attribute__((noinline)) void KCopyRows(const T* from, long rows, long row_stride,
                                                long k_stride, long k, T* to) {
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

// to[lane][row] = from[row][lane]; REQUIRES: both extents are multiples of 4.
template <int kRows, int kLanes, class T>
static __attribute__((noinline)) void KTransposeTile(const T* from, T* to) {
  KILN_ROLLED for (long row = 0; row < kRows; row += 4) {
    KILN_ROLLED for (long lane = 0; lane < kLanes; lane += 4) {
      KTranspose4(from + row * kLanes + lane, kLanes, to + lane * kRows + row, kRows);
    }
  }
}

// A panel of an operand that is contiguous along k: to[k][lane] = from[lane * lane_stride + k] for
// `lanes` of the panel's kWidth lanes. Sixteen k at a time, so that a cache line read is used up.
template <int kWidth, class T>
static __attribute__((noinline)) void KPackTransposed(const T* from, long lane_stride, long lanes,
                                                      long k, T* to) {
  KILN_ROLLED for (long begin = 0; begin < k; begin += 16) {
    const long end = KMinIndex(begin + 16, k);
    KILN_ROLLED for (long lane = 0; lane < lanes; lane += 4) {
      // The next lines are far apart, which no prefetcher foresees. Past the end it does no harm.
      const long ahead = lane + 32;
      const T* next = ahead < lanes ? from + ahead * lane_stride + begin
                                    : from + (ahead - lanes) * lane_stride + begin + 16;
#pragma clang loop unroll(full)
      for (int l = 0; l < 4; ++l) __builtin_prefetch(next + l * lane_stride, 0, 2);
      KILN_ROLLED for (long i = begin; i < end; i += 4) {
        if (lane + 4 <= lanes && i + 4 <= k) {
          KTranspose4(from + lane * lane_stride + i, lane_stride, to + i * kWidth + lane, kWidth);
          continue;
        }
        const long lane_end = KMinIndex(lane + 4, lanes), i_end = KMinIndex(i + 4, k);
        KILN_ROLLED for (long l = lane; l < lane_end; ++l) {
          KILN_ROLLED for (long m = i; m < i_end; ++m) {
            to[m * kWidth + l] = from[l * lane_stride + m];
          }
        }
      }
    }
  }
}
