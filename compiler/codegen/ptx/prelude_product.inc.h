// Goes on where prelude_warps.inc.h ends: matrix products on the tensor cores of sm_90a.
//
// A block has two warpgroups that multiply and one of which a thread loads. It takes tiles of the
// result in turn until none is left. Tiles of both operands, kStep deep, go through a ring of
// stages: the loader asks the tensor memory accelerator for them and the stage's barrier `full`
// counts their bytes; each warp arrives at its `empty` once it has read them. Operands lie in
// shared memory in lines of 128 bytes, whose pieces of 16 are permuted as the hardware does it
// ("128-byte swizzle"), so that nothing meets in a bank.
//
// A Shape has: kRows, kColumns of a tile; kStages; kTurns: each multiplying warpgroup has tiles of
// its own, and one stores while the other multiplies, else both share a tile by its rows;
// kCluster: blocks, 1 or 2, with tiles one below the other, each of which loads its part of what
// is the same for all, the second operand, into the shared memory of all;
// kTurnedA, kTurnedB: the operand is contiguous along the tile's side, not along the depth;
// kManyRegisters: sums leave few for anything else; Mma: instructions of a step for 64 rows and
// kColumns (wgmma.h); and what prelude_sums.inc.h takes.
#ifdef __NVPTX__

struct alignas(64) KTensorMap {
  unsigned long words[16];
};

KILN_FN void KBarrierInit(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
KILN_FN void KBarrierExpect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
KILN_FN void KBarrierArrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of that parity is over.
KILN_FN void KBarrierWait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// A box of the tensor at element (x, y), x along what is contiguous; zeros outside of it.
KILN_FN void KLoadBox(unsigned to, unsigned long map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// The same for all blocks of a cluster of two, at the same place and barrier of each.
KILN_FN void KLoadBoxOfBoth(unsigned to, unsigned long map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)3)
      : "memory");
}
// At the barrier of that place in another block of the cluster. Without `.release.cluster`, of
// which the assembler makes a fence of all memory: what the arrival follows are reads.
KILN_FN void KBarrierArriveIn(unsigned barrier, int block) {
  asm volatile(
      "{.reg .b32 at;\n"
      "mapa.shared::cluster.u32 at, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
KILN_FN void KClusterSync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
KILN_FN void KNamedSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KILN_FN void KNamedArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// How the tensor cores find a tile in shared memory; `leading`: bytes between blocks of 64
// elements along the tile's side, where that is contiguous.
KILN_FN unsigned long KTileDescriptor(unsigned address, unsigned leading) {
  constexpr unsigned long kStride = 1024, kSwizzled = 1ul << 62;
  return (address & 0x3ffff) >> 4 | (unsigned long)(leading >> 4) << 16 | (kStride >> 4) << 32 |
         kSwizzled;
}

template <class S>
struct KProductPlan {
  static constexpr int kStep = 64, kLine = 128;  // bytes of a step's elements
  static constexpr int kBytesA = S::kRows * kLine, kBytesB = S::kColumns * kLine;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  // Then, of each multiplying warp, 16 rows of results of 64 columns; then barriers.
  static constexpr int kPieceBytes = 16 * kLine;
  static constexpr int kPiecesAt = S::kStages * kStageBytes;
  static constexpr int kBarriers = kPiecesAt + 8 * kPieceBytes;
  // Of 64 rows, that a warpgroup multiplies in each step.
  static constexpr int kBlocks = S::kTurns ? S::kRows / 64 : S::kRows / 128;
};

// Boxes of an operand's tile from `side` on, kSides long, and its step from k on.
template <int kSides, bool kTurned>
KILN_FN void KLoadTile(unsigned to, unsigned long map, int side, int k, unsigned barrier) {
  if constexpr (kTurned) {
#pragma clang loop unroll(full)
    for (int i = 0; i < kSides; i += 64) KLoadBox(to + i * 128, map, side + i, k, barrier);
  } else {
    KLoadBox(to, map, k, side, barrier);
  }
}
// One thread's part: all boxes of all tiles of the block.
template <class S>
KILN_FN void KLoadTiles(unsigned shared, unsigned long map_a, unsigned long map_b, int tile_rows,
                        int tile_columns, int steps) {
  using P = KProductPlan<S>;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int clusters = __nvvm_read_ptx_sreg_nctaid_x() / S::kCluster;
  const int rank = KRankInCluster<S::kCluster>();
  int stage = 0;
  unsigned parity = 1;
  for (int number = (int)KBlock() / S::kCluster; number < tile_rows * tile_columns;
       number += clusters) {
    // From the number anew: this thread has few registers, and is ahead of those that multiply.
    const KTile tile = KTiles<S>(tile_rows, tile_columns, number).At();
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes, b = a + P::kBytesA;
      const unsigned barrier = full + 8 * stage;
      const int k = step * P::kStep;
      KBarrierWait(empty + 8 * stage, parity);
      KBarrierExpect(barrier, P::kStageBytes);
      KLoadTile<S::kRows, S::kTurnedA>(a, map_a, tile.row, k, barrier);
      if constexpr (S::kCluster > 1) {
        KLoadBoxOfBoth(b + rank * (P::kBytesB / 2), map_b, k,
                       tile.column + rank * (S::kColumns / 2), barrier);
      } else {
        KLoadTile<S::kColumns, S::kTurnedB>(b, map_b, tile.column, k, barrier);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// Arrives at a stage's `empty`, of all blocks whose operands were in it.
template <class S>
KILN_FN void KGiveBack(unsigned barrier, int lane) {
  if constexpr (S::kCluster > 1) {
    if (lane < S::kCluster) KBarrierArriveIn(barrier, lane);
  } else {
    if (lane == 0) KBarrierArrive(barrier);
  }
}

// A multiplying warpgroup's part, with a KWork of prelude_sums.inc.h.
template <class S, class F>
KILN_FN void KMultiplyTiles(unsigned shared, int group, int rows, int columns, int tile_rows,
                            int tile_columns, int steps, const F& work) {
  using P = KProductPlan<S>;
  constexpr int kN = S::kColumns;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int warp = KOfFirstLane(KThread() >> 5 & 3), lane = KThread() & 31;
  const int clusters = __nvvm_read_ptx_sreg_nctaid_x() / S::kCluster;
  const unsigned buffer = shared + P::kPiecesAt + (group * 4 + warp) * P::kPieceBytes;
  float sums[P::kBlocks][kN / 2];
  int stage = 0;
  unsigned parity = 0;
  const auto pass = [&]() KILN_INLINE {  // over the stages of a tile that the other one has
    stage += steps;
    parity ^= stage / S::kStages & 1;
    stage %= S::kStages;
  };
  if (S::kTurns && group == 1) {
    KNamedArrive(1, 256);
    pass();
  }
  const int begin = (int)KBlock() / S::kCluster + (S::kTurns ? group * clusters : 0);
  KTiles<S> tiles(tile_rows, tile_columns, begin);
  for (; tiles.IsAny(); tiles.Skip(S::kTurns ? 2 * clusters : clusters)) {
    const KTile tile = tiles.At();
    const int of_group = S::kTurns ? 0 : group * 64 * P::kBlocks;
    // A wait for a parity cannot tell a phase from the one after the next: begin when the other
    // warpgroup has seen its last stage filled.
    if (S::kTurns) KNamedSync(1 + group, 256);
    int before = 0;
#pragma clang loop unroll(disable)
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes;
      const unsigned long of_a = KTileDescriptor(a + of_group * P::kLine, S::kTurnedA ? 8192 : 16);
      const unsigned long of_b = KTileDescriptor(a + P::kBytesA, S::kTurnedB ? 8192 : 16);
      KBarrierWait(full + 8 * stage, parity);
      if (S::kTurns && step == steps - 1) KNamedArrive(2 - group, 256);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma clang loop unroll(full)
      for (int i = 0; i < P::kBlocks; ++i) S::Mma::Multiply(sums[i], of_a + i * 512, of_b, step);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      if (step > 0) KGiveBack<S>(empty + 8 * before, lane);
      before = stage;
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) S::Mma::template Wait<0>(sums[i]);
    KGiveBack<S>(empty + 8 * before, lane);
    if (S::kTurns) pass();

    const int end = tile.column + kN < columns ? tile.column + kN : columns;
    const KPlace at = {tile.row + of_group + warp * 16, tile.column, rows, end};
    KFinishSums<KOfWarp<S, P::kBlocks, 64, kN>>(sums, at, buffer, work);
  }
}

template <class S, class F>
KILN_FN void KProduct(unsigned long map_a, unsigned long map_b, int rows, int columns, int depth,
                      const F& work) {
  using P = KProductPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const int tile_rows = (rows + S::kRows * S::kCluster - 1) / (S::kRows * S::kCluster);
  const int tile_columns = (columns + S::kColumns - 1) / S::kColumns;
  const int steps = (depth + P::kStep - 1) / P::kStep;
  KLetNextBegin();
  if (KThread() == 0) {
    const unsigned full = shared + P::kBarriers;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, 1);
      KBarrierInit(full + 8 * (S::kStages + i), (S::kTurns ? 1 : 2) * 4 * S::kCluster);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (S::kCluster > 1) {
    KClusterSync();
  } else {
    __syncthreads();
  }
  KWaitForPrevious();
  const int group = KOfFirstLane(KThread() >> 7);
  if (group == 2) {
    if constexpr (S::kManyRegisters) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    } else {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    }
    if (KThread() == 256) {
      KLoadTiles<S>(shared, map_a, map_b, tile_rows, tile_columns, steps);
    }
  } else {
    if constexpr (S::kManyRegisters) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    }
    KMultiplyTiles<S>(shared, group, rows, columns, tile_rows, tile_columns, steps, work);
  }
  // Until then other blocks of the cluster may arrive at this one's barriers.
  if constexpr (S::kCluster > 1) {
    KMeetWarp();
    KClusterSync();
  }
}
#endif
