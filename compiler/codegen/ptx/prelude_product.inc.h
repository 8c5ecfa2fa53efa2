// Goes on where prelude_team.inc.h ends: matrix products on the tensor cores of sm_90a.
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
// kTurnedA, kTurnedB: the operand is contiguous along the tile's side, not along the depth; Mma:
// the instruction for kColumns, and float registers of its result.
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
KILN_FN void KNamedSync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KILN_FN void KNamedArrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
KILN_FN int KOfFirstLane(int x) {
  return __nvvm_shfl_sync_idx_i32(0xffffffff, x, 0, 31);
}
// How the tensor cores find a tile in shared memory; `leading`: bytes between blocks of 64
// elements along the tile's side, where that is contiguous.
KILN_FN unsigned long KTileDescriptor(unsigned address, unsigned leading) {
  constexpr unsigned long kStride = 1024, kSwizzled = 1ul << 62;
  return (address & 0x3ffff) >> 4 | (unsigned long)(leading >> 4) << 16 | (kStride >> 4) << 32 |
         kSwizzled;
}

struct KTile {
  int row, column;
};
// Of tile `number`: those of a few rows together, so that what runs at a time shares operands in
// the second-level cache.
template <class Shape>
KILN_FN KTile KTileAt(int number, int rows, int columns) {
  constexpr int kGroup = 1024 / Shape::kRows;
  const int per_group = kGroup * columns, group = number / per_group, first = group * kGroup;
  const int in_group = rows - first < kGroup ? rows - first : kGroup;
  const int rest = number - group * per_group;
  return {(first + rest % in_group) * Shape::kRows, rest / in_group * Shape::kColumns};
}

template <class S>
struct KProductPlan {
  static constexpr int kStep = 64, kLine = 128;  // bytes of a step's elements
  static constexpr int kBytesA = S::kRows * kLine, kBytesB = S::kColumns * kLine;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kWarps = 8, kPieceStride = 72 * 4, kPieceBytes = 8 * kPieceStride;
  static constexpr int kPieces = S::kStages * kStageBytes;
  static constexpr int kBarriers = kPieces + kWarps * kPieceBytes;
  // Of 64 rows, that a warpgroup multiplies in each step.
  static constexpr int kBlocks = S::kTurns ? S::kRows / 64 : S::kRows / 128;
  // What a warp hands over at a time: 8 rows by 64 columns, or fewer at the tile's end.
  static constexpr int kChunks = (S::kColumns + 63) / 64, kParts = kBlocks * kChunks * 2;
};

// One thread's part: all boxes of all tiles of the block.
template <class S>
KILN_FN void KLoadTiles(unsigned shared, unsigned long map_a, unsigned long map_b, int tile_rows,
                        int tile_columns, int steps) {
  using P = KProductPlan<S>;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int blocks = __nvvm_read_ptx_sreg_nctaid_x();
  int stage = 0;
  unsigned parity = 1;
  for (int number = (int)KBlock(); number < tile_rows * tile_columns; number += blocks) {
    const KTile tile = KTileAt<S>(number, tile_rows, tile_columns);
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes, b = a + P::kBytesA;
      const unsigned barrier = full + 8 * stage;
      const int k = step * P::kStep;
      KBarrierWait(empty + 8 * stage, parity);
      KBarrierExpect(barrier, P::kStageBytes);
      if constexpr (S::kTurnedA) {
#pragma clang loop unroll(full)
        for (int i = 0; i < S::kRows; i += 64) {
          KLoadBox(a + i * P::kLine, map_a, tile.row + i, k, barrier);
        }
      } else {
        KLoadBox(a, map_a, k, tile.row, barrier);
      }
      if constexpr (S::kTurnedB) {
#pragma clang loop unroll(full)
        for (int i = 0; i < S::kColumns; i += 64) {
          KLoadBox(b + i * P::kLine, map_b, tile.column + i, k, barrier);
        }
      } else {
        KLoadBox(b, map_b, k, tile.column, barrier);
      }
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// Hands 8 rows by kColumns of a warp's sums over through shared memory. `sums` are a thread's: from
// `first` on those of row lane / 4 or, where kLower, 8 below that, at columns 8 j + lane % 4 * 2
// and the next.
template <int kColumns, int kLower, int N>
KILN_FN void KPutPiece(unsigned piece, int lane, const float (&sums)[N], int first) {
  // Pieces of 16 bytes with an odd number lie behind all with an even one, neighbours exchanged:
  // neither storing pairs nor reading 16 bytes meets in a bank then.
  const int odd = lane >> 1 & 1;
  const unsigned at = piece + (lane >> 2) * (72 * 4) + (lane & 1) * 8;
  const unsigned of_even = at + (odd ? 144 : 0), of_odd = at + (odd ? 112 : 0);
#pragma clang loop unroll(full)
  for (int j = 0; j < kColumns / 8; ++j) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"((j & 1 ? of_odd : of_even) + j * 16),
                 "f"(sums[first + 4 * j + 2 * kLower]), "f"(sums[first + 4 * j + 2 * kLower + 1])
                 : "memory");
  }
}
template <class S, int kPart = 0, int B, int N>
KILN_FN void KPutPart(int part, unsigned piece, int lane, const float (&sums)[B][N]) {
  using P = KProductPlan<S>;
  if constexpr (kPart < P::kParts) {
    if (part != kPart) return KPutPart<S, kPart + 1>(part, piece, lane, sums);
    constexpr int kChunk = kPart / 2 % P::kChunks, kLeft = S::kColumns - kChunk * 64;
    KPutPiece<(kLeft < 64 ? kLeft : 64), kPart % 2>(piece, lane, sums[kPart / 2 / P::kChunks],
                                                    kChunk * 32);
  }
}
// 8 columns of a row.
KILN_FN Vec<float, 8> KTakePiece(unsigned piece, int row, int octet) {
  const unsigned at = piece + row * (72 * 4);
  float v[8];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(at + octet * 16)
               : "memory");
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
               : "r"(at + 128 + (octet ^ 1) * 16)
               : "memory");
  return Vec<float, 8>{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
}

// A multiplying warpgroup's part: finish(row, column, values of 8 columns from there on) for all of
// the result. The number of columns is a multiple of 8.
template <class S, class F>
KILN_FN void KMultiplyTiles(unsigned shared, int group, int rows, int columns, int tile_rows,
                            int tile_columns, int steps, F finish) {
  using P = KProductPlan<S>;
  constexpr int kN = S::kColumns;
  const unsigned full = shared + P::kBarriers, empty = full + 8 * S::kStages;
  const int warp = KOfFirstLane(KThread() >> 5 & 3), lane = KThread() & 31;
  const unsigned piece = shared + P::kPieces + (group * 4 + warp) * P::kPieceBytes;
  const int blocks = __nvvm_read_ptx_sreg_nctaid_x();
  float sums[P::kBlocks][kN / 2];
  int stage = 0, turn = 0;
  unsigned parity = 0;
  if (S::kTurns && group == 1) KNamedArrive(1, 256);
  for (int number = (int)KBlock(); number < tile_rows * tile_columns; number += blocks, ++turn) {
    if (S::kTurns && (turn & 1) != group) {  // the other's: over its stages
      stage += steps;
      parity ^= stage / S::kStages & 1;
      stage %= S::kStages;
      continue;
    }
    const KTile tile = KTileAt<S>(number, tile_rows, tile_columns);
    const int of_group = S::kTurns ? 0 : group * 64 * P::kBlocks;
    // A wait for a parity cannot tell a phase from the one after the next: begin when the other
    // warpgroup has seen its last stage filled.
    if (S::kTurns) KNamedSync(1 + group, 256);
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      const unsigned a = shared + stage * P::kStageBytes;
      const unsigned long of_a = KTileDescriptor(a + of_group * P::kLine, S::kTurnedA ? 8192 : 16);
      const unsigned long of_b = KTileDescriptor(a + P::kBytesA, S::kTurnedB ? 8192 : 16);
      KBarrierWait(full + 8 * stage, parity);
      if (S::kTurns && step == steps - 1) KNamedArrive(2 - group, 256);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma clang loop unroll(full)
      for (int k = 0; k < 4; ++k) {
#pragma clang loop unroll(full)
        for (int i = 0; i < P::kBlocks; ++i) {
          S::Mma::template Multiply<S::kTurnedA, S::kTurnedB>(
              sums[i], of_a + k * (S::kTurnedA ? 128 : 2) + i * 512,
              of_b + k * (S::kTurnedB ? 128 : 2), k == 0 ? step : 1);
        }
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      if (step > 0 && lane == 0) KBarrierArrive(empty + 8 * before);
      before = stage;
      if (++stage == S::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
#pragma clang loop unroll(full)
    for (int i = 0; i < P::kBlocks; ++i) S::Mma::Wait(sums[i]);
    if (lane == 0) KBarrierArrive(empty + 8 * before);

    // Rolled, as what finishes a piece is long: only who stores its sums knows their registers.
#pragma clang loop unroll(disable)
    for (int part = 0; part < P::kParts; ++part) {
      __nvvm_bar_warp_sync(0xffffffff);
      KPutPart<S>(part, piece, lane, sums);
      __nvvm_bar_warp_sync(0xffffffff);
      const int chunk = part / 2 % P::kChunks, block = part / 2 / P::kChunks;
      const int first_row = tile.row + of_group + block * 64 + warp * 16 + part % 2 * 8;
      const int in_chunk = chunk * 64 + (lane & 7) * 8;
#pragma clang loop unroll(full)
      for (int pass = 0; pass < 2; ++pass) {
        const int in_piece = pass * 4 + (lane >> 3);
        const int row = first_row + in_piece, column = tile.column + in_chunk;
        const Vec<float, 8> values = KTakePiece(piece, in_piece, lane & 7);
        if (row < rows && column < columns && (kN % 64 == 0 || in_chunk < kN)) {
          finish(row, column, values);
        }
      }
    }
  }
}

template <class S, class F>
KILN_FN void KProduct(unsigned long map_a, unsigned long map_b, int rows, int columns, int depth,
                      F finish) {
  using P = KProductPlan<S>;
  const unsigned shared =
      ((unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared + 1023) &
      ~1023u;
  const int tile_rows = (rows + S::kRows - 1) / S::kRows;
  const int tile_columns = (columns + S::kColumns - 1) / S::kColumns;
  const int steps = (depth + P::kStep - 1) / P::kStep;
  if (KThread() == 0) {
    const unsigned full = shared + P::kBarriers;
    for (int i = 0; i < S::kStages; ++i) {
      KBarrierInit(full + 8 * i, 1);
      KBarrierInit(full + 8 * (S::kStages + i), (S::kTurns ? 1 : 2) * 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
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
    KMultiplyTiles<S>(shared, group, rows, columns, tile_rows, tile_columns, steps, finish);
  }
}
#endif
