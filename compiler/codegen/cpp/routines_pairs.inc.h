// Bodies of the routines of pairs of bfloat16 that prelude_routines.inc.h declares; follows
// routines.inc.h in their objects' texts.

template <int kWidth>
void KInterleave<kWidth>::Run(const KBf16* from, long k_stride, long lanes, long k, KBf16* to) {
  KILN_ROLLED for (long i = 0; i < k; i += 2, to += 2 * kWidth) {
    const KBf16 *a = from + i * k_stride, *b = a + k_stride;
    long lane = 0;
    if (i + 1 < k) {
      KILN_ROLLED for (; lane + 16 <= lanes; lane += 16) {
        const Vec<KBf16, 16> low = KLoadAll<16>(a + lane), high = KLoadAll<16>(b + lane);
        KStoreAll(to + 2 * lane,
                  (Vec<KBf16, 32>)__builtin_shufflevector(
                      low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9,
                      25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
      }
    }
    KILN_ROLLED for (; lane < lanes; ++lane) {
      to[2 * lane] = a[lane];
      if (i + 1 < k) to[2 * lane + 1] = b[lane];
    }
  }
}

#ifdef __AMX_BF16__
// Products of MR rows by tiles of AMX (Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 1, chapter 18): first those of the sums, [MR / 16][NV], then the rows', then in
// turn the panel's.
template <int MR, int NV>
struct KTiles16 {
  static constexpr int kBlocks = MR / 16, kSums = kBlocks * NV, kStep = 32, kWidth = 16 * NV;
  static constexpr int kOfPanel = kSums + kBlocks, kTurns = 8 - kOfPanel;
  static_assert(MR % 16 == 0 && kTurns > 0);

  template <int kBlock, int kVector>
  KILN_FN void AddBlock(const KBf16* panel) {
    constexpr int kTile = kOfPanel + kVector % kTurns;
    if constexpr (kBlock == 0) {
      __builtin_ia32_tileloadd64(kTile, panel + 32 * kVector, kWidth * sizeof(int));
    }
    __builtin_ia32_tdpbf16ps(kBlock * NV + kVector, kSums + kBlock, kTile);
  }
  // Adds kStep of k.
  template <int... I, int... kBlock>
  KILN_FN void Add(const KBf16* a, long row_stride, const KBf16* panel, KNumbers<int, I...>,
                   KNumbers<int, kBlock...>) {
    (__builtin_ia32_tileloadd64(kSums + kBlock, a + 16 * kBlock * row_stride,
                                row_stride * sizeof(KBf16)),
     ...);
    (AddBlock<I % kBlocks, I / kBlocks>(panel), ...);
  }
  // The same of the last steps, `k` of them: with zeros behind.
  KILN_FN void AddRest(long k, const KBf16* a, long row_stride, const KBf16* panel) {
    alignas(64) KBf16 rows[MR][kStep];
    alignas(64) KBf16 pairs[kStep / 2][2 * kWidth] = {};
    KILN_ROLLED for (int r = 0; r < MR; ++r) {
      KStoreAll((int*)rows[r],
                KLoadWhere<16>((const int*)(a + r * row_stride), KActive<16>(k / 2), 0));
    }
    __builtin_memcpy(pairs, panel, k * kWidth * sizeof(KBf16));
    Add(rows[0], kStep, pairs[0], KLanes<kSums>(), KLanes<kBlocks>());
  }
  template <int... I>
  KILN_FN void Clear(KNumbers<int, I...>) {
    (__builtin_ia32_tilezero(I), ...);
  }
  template <int... I>
  KILN_FN void Store(float* to, KNumbers<int, I...>) {
    (__builtin_ia32_tilestored64(I, to + (I / NV * kWidth + I % NV) * 16, kWidth * sizeof(float)),
     ...);
  }

  KILN_FN void Run(long k, const KBf16* a, long row_stride, const KBf16* panel, float* tile) {
    const long run = 4096;
    for (bool first = true; first || k > 0; first = false) {
      Clear(KLanes<kSums>());
      const long end = k < run ? 0 : k - run;
      KILN_ROLLED for (; k - end >= kStep; k -= kStep, a += kStep, panel += kStep * kWidth) {
        KPrefetch<kStep * kWidth, 3>(panel + kPanelBytesAhead / (long)sizeof(KBf16));
        Add(a, row_stride, panel, KLanes<kSums>(), KLanes<kBlocks>());
      }
      if (k > end) {
        AddRest(k - end, a, row_stride, panel);
        k = end;
      }
      if (first) {
        Store(tile, KLanes<kSums>());
        continue;
      }
      alignas(64) float sums[MR * kWidth];
      Store(sums, KLanes<kSums>());
      KILN_ROLLED for (int i = 0; i < MR * kWidth; i += 16) {
        KStoreAll(tile + i,
                  KLoadAll<16>((const float*)tile + i) + KLoadAll<16>((const float*)sums + i));
      }
    }
  }
};
#endif

#ifdef __AVX512BF16__
template <int VL, int MR, int NV>
void KMicroKernelPairs<VL, MR, NV>::Run(long k, const KBf16* a, long row_stride, const KBf16* panel,
                                        float* tile) {
  static_assert(VL == 16);
#ifdef __AMX_BF16__
  if constexpr (MR % 16 == 0) return KTiles16<MR, NV>::Run(k, a, row_stride, panel, tile);
#endif
  using Pairs = __bf16 __attribute__((vector_size(64)));
  using Sums = float __attribute__((vector_size(64)));
  const long run = 512;
  for (bool first = true; first || k > 0; first = false, k -= run) {
    Sums acc[MR][NV] = {};
    KILN_ROLLED for (long rest = k < run ? k : run; rest > 0; rest -= 2) {
      Pairs b[NV];
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) __builtin_memcpy(&b[v], panel + v * 2 * VL, sizeof(Pairs));
      KPrefetch<2 * NV * VL>(panel + kPanelBytesAhead / (long)sizeof(KBf16));
#pragma clang loop unroll(full)
      for (int r = 0; r < MR; ++r) {
        int pair;
        __builtin_memcpy(&pair, a + r * row_stride, sizeof(pair));
        const Pairs x = (Pairs)(Vec<int, 16>)(pair);
#pragma clang loop unroll(full)
        for (int v = 0; v < NV; ++v) acc[r][v] = __builtin_ia32_dpbf16ps_512(acc[r][v], x, b[v]);
      }
      a += 2;
      panel += 2 * NV * VL;
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < MR; ++r) {
#pragma clang loop unroll(full)
      for (int v = 0; v < NV; ++v) {
        float* const to = tile + (r * NV + v) * VL;
        const Vec<float, VL> sum = (Vec<float, VL>)acc[r][v];
        KStoreAll(to, first ? sum : KLoadAll<VL>((const float*)to) + sum);
      }
    }
  }
}
#endif
