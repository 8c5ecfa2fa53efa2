// ---- Loops and threads ---------------------------------------------------------------------

// body<kTail>(first lane's index, active lanes) over [begin, end) in steps of W. kExact: the length
// is known to be a multiple of W.
template <int W, bool kExact, class F>
KILN_FN void KVectorLoop(long begin, long end, F body) {
  long i = begin;
#pragma clang loop unroll(disable)
  for (; i + W <= end; i += W) body.template operator()<false>(i, W);
  if constexpr (!kExact) {
    if (i < end) body.template operator()<true>(i, end - i);
  }
}

// ---- Routines ------------------------------------------------------------------------------

// What depends on types and sizes of tiles alone and is called by many kernels. Each is an object
// of its own, compiled once and linked to the kernels that call it: routines.inc.h defines them,
// after this text.
#define KILN_ROUTINE struct __attribute__((visibility("hidden")))

// Splits rows x lanes into tasks, lanes at multiples of `lane_step`, and runs them. `cost`: scalar
// operations a point of the grid; small grids run on the calling thread.
struct KGrid {
  void* args;
  void (*run)(void* args, long row_begin, long row_end, long lane_begin, long lane_end, int thread);
  long rows, lanes, lane_step, row_tasks, lane_tasks;
};
template <long kCostOfTask>
KILN_ROUTINE KRunGrid {
  static void Run(const KilnCpuContext* context, KGrid grid, double cost);
  static void Task(void* closure, long task, int thread);
};

// tile[r][lane] = sum over k of a[r * row_stride + k * k_stride] * panel[k][lane], for MR rows and
// NV vectors of VL lanes. All accumulators stay in registers; long sums are added up in runs, so
// that the rounding error does not grow with k. Panels of a narrower type P are widened on the way.
template <class T, class P, int VL, int MR, int NV>
KILN_ROUTINE KMicroKernel {
  static void Run(long k, const T* a, long row_stride, long k_stride, const P* panel, T* tile);
};

// While one lives, each tile register (AMX) of its thread is 16 rows of 64 bytes. To set that takes
// as long as a small product. Nothing where a CPU has none.
struct KTileRegisters {
#ifdef __AMX_TILE__
  struct alignas(64) Shapes {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  KILN_INLINE KTileRegisters() {
    static constexpr Shapes kShapes;
    __builtin_ia32_tile_loadconfig(&kShapes);
  }
  KILN_INLINE ~KTileRegisters() { __builtin_ia32_tilerelease(); }
#endif
};

// tile[r][lane] = sum over i < k of a[r * row_stride + i] * panel[i][lane], where the panel holds
// pairs of i side by side; two multiply-adds of each lane at a time, or 16 x 16 sums where the CPU
// has tiles and MR is a multiple of 16. REQUIRES: k is even; there, KTileRegisters.
template <int VL, int MR, int NV>
KILN_ROUTINE KMicroKernelPairs {
  static void Run(long k, const KBf16* a, long row_stride, const KBf16* panel, float* tile);
};

// to[r][k] = from[min(r, rows - 1) * row_stride + k * k_stride] for MR rows: the last, partly empty
// block of rows, filled up so that the one micro kernel serves.
template <int MR, class T>
KILN_ROUTINE KCopyRows {
  static void Run(const T* from, long rows, long row_stride, long k_stride, long k, T* to);
};

// to[lane][row] = from[row][lane]; REQUIRES: both extents are multiples of 4.
template <int kRows, int kLanes, class T>
KILN_ROUTINE KTransposeTile {
  static void Run(const T* from, T* to);
};

// An operand that is contiguous along k: to[k * k_stride + lane] = from[lane * lane_stride + k]. Of
// each lane 1 KiB at a time, so that whole lines are used up and memory is read in pieces that
// suit it.
template <class T>
KILN_ROUTINE KPackTransposed {
  static void Run(const T* from, long lane_stride, long lanes, long k, T* to, long k_stride);
};

// to[pair i][lane] = (from[2 * i][lane], from[2 * i + 1][lane]); an odd k's last pair keeps its
// second half.
template <int kWidth>
KILN_ROUTINE KInterleave {
  static void Run(const KBf16* from, long k_stride, long lanes, long k, KBf16* to);
};

// to[pair i][lane] = the pair at from[lane * lane_stride + 2 * i], for `lanes` of a panel's kWidth.
// REQUIRES: lane_stride and k are even.
template <int kWidth>
KILN_FN void KPackPairs(const KBf16* from, long lane_stride, long lanes, long k, KBf16* to) {
  KPackTransposed<int>::Run((const int*)from, lane_stride / 2, lanes, k / 2, (int*)to, kWidth);
}

// `row` in ascending order, by digits of 8 bits from the lowest on (Knuth, "The Art of Computer
// Programming" 5.2.5, radix list sort): a pass keeps the order of equal digits, so digits in which
// all elements agree need none, nor do the lower halves where they ascend already.
template <class Key>
KILN_ROUTINE KSort {
  static void Run(Key * row, Key * scratch, long n);
};

// row[0, k) = the k least of it, ascending. Those that may be among them gather in `scratch`; when
// it holds many, the k least of those stay.
template <class Key>
KILN_ROUTINE KSelectLeast {
  static void Run(Key * row, Key * scratch, long n, long k);
};

// Winograd's transform of an image's tiles of 4 x 4, which begin at every other row and column from
// (first_row, first_column) on; outside of the image are zeros. to[plane * (4 * i + j) + pitch *
// channel + number of the tile] = element (i, j) of a channel's tile, transformed. Behind a row of
// tiles up to VL - 1 elements are overwritten: the next one's, or of a plane's last nobody's. At
// most kMost tiles are side by side.
template <int VL, int kMost>
KILN_ROUTINE KWinogradImage {
  static void Run(const float* image, long channels, long channel_stride, long height,
                  long row_stride, long width, long first_row, long first_column, long tile_rows,
                  long tile_columns, long pitch, long plane, float* to);
};

// The sums of rows x columns places, to[row][column][lane], from products[16][pitch][lane] of
// transformed tiles and weights. Where one of them is no finite number all are computed from the
// image and from the weights in panel[channel][tap][lane] instead: a transform makes NaN of an
// infinity, and of numbers near the greatest.
template <int VL, int NV>
KILN_ROUTINE KWinogradSums {
  static void Run(const float* products, long pitch, long tile_columns, const float* image,
                  long channels, long channel_stride, long height, long row_stride, long width,
                  long first_row, long first_column, const float* panel, long rows, long columns,
                  float* to);
};
