// ---- Matrix products -----------------------------------------------------------------------

// tile[r][lane] = sum over k of a[r * row_stride + k * k_stride] * panel[k][lane], for MR rows and
// NV vectors of VL lanes. All accumulators stay in registers.
template <class T, int VL, int MR, int NV>
static __attribute__((noinline)) void KMicroKernel(long k, const T* a, long row_stride,
                                                   long k_stride, const T* panel, T* tile) {
#pragma clang fp contract(fast)
  Vec<T, VL> acc[MR][NV] = {};
#pragma clang loop unroll_count(2)
  for (; k > 0; --k) {
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
    for (int v = 0; v < NV; ++v) KStoreAll(tile + (r * NV + v) * VL, acc[r][v]);
  }
}

// to[r][k] = from[min(r, rows - 1) * row_stride + k * k_stride] for MR rows: the last, partly empty
// block of rows, filled up so that the one micro kernel serves.
template <int MR, class T>
static __attribute__((noinline)) void KCopyRows(const T* from, long rows, long row_stride,
                                                long k_stride, long k, T* to) {
  for (long r = 0; r < MR; ++r) {
    const T* row = from + (r < rows ? r : rows - 1) * row_stride;
    for (long i = 0; i < k; ++i) to[r * k + i] = row[i * k_stride];
  }
}

// to[lane][row] = from[row][lane]
template <int kRows, int kLanes, class T>
static __attribute__((noinline)) void KTransposeTile(const T* from, T* to) {
#pragma clang loop unroll(disable)
  for (int lane = 0; lane < kLanes; ++lane) {
#pragma clang loop unroll_count(8)
    for (int row = 0; row < kRows; ++row) to[lane * kRows + row] = from[row * kLanes + lane];
  }
}

// Calls body for every task: on this thread where `work`, in multiply-adds, is small.
static inline void KParallel(const KilnCpuContext* context, long tasks, double work,
                             void (*body)(void* closure, long task, int thread), void* closure) {
  if (tasks > 1 && context->threads > 1 && work > 100000) {
    context->parallel_for(context, tasks, body, closure);
    return;
  }
  for (long task = 0; task < tasks; ++task) body(closure, task, 0);
}
