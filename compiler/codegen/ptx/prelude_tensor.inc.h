// Goes on where prelude_team.inc.h ends: what warps do with tensor cores and shared memory from
// sm_80 on. Addresses in shared memory are numbers; matrices have 8 rows of 8 elements of 16 bits.

using KOctet = Vec<unsigned, 4>;  // 8 elements of 16 bits

#ifdef __NVPTX__
// Where the block's memory begins: a multiple of 128.
KILN_FN unsigned KSharedBase() {
  return (unsigned)(unsigned long)(__attribute__((address_space(3))) char*)kiln_shared;
}
KILN_FN void KMeetWarp() {
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
}
KILN_FN int KOfFirstLane(int x) {
  return __nvvm_shfl_sync_idx_i32(0xffffffff, x, 0, 31);
}
KILN_FN KOctet KLoadOctet(unsigned from) {
  KOctet x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
  return x;
}
KILN_FN unsigned short KLoadShort(unsigned from) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(from) : "memory");
  return x;
}
KILN_FN unsigned KLoadWord(unsigned from) {
  unsigned x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
KILN_FN void KStoreWord(unsigned to, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
KILN_FN void KStoreFloats(unsigned to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
KILN_FN Vec<float, 2> KLoadFloats(unsigned from) {
  Vec<float, 2> x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
  return x;
}

// Four matrices, of each a pair of a row's elements from each lane: lane l has row l / 4, elements
// 2 * (l % 4) and the next. Lanes 8 i to 8 i + 7 give where the rows of matrix i go. Of sm_90 on.
KILN_FN void KStoreBlocks(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same from where such lanes say; turned, a lane's pair is of column l / 4.
template <bool kTurned>
KILN_FN KOctet KLoadMatrices(unsigned from) {
  KOctet x;
  if constexpr (kTurned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
  }
  return x;
}
// sums[0, 4) += a b, 16 rows by 8 columns, 16 deep. With g = lane / 4 and t = lane % 4: `a` is of
// row g, k from 2 t and from 2 t + 8 on in words 0 and 2, of row g + 8 in words 1 and 3; b0 and b1
// are those of column g; sums are of row g, columns 2 t and the next, then of row g + 8.
template <bool kHalf>
KILN_FN void KMultiplyPairs(float* sums, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Whatever made the number comes after what stands before this, and before what stands after it, as
// far as that is loads and stores: else all matrices might be loaded first, and registers not do.
KILN_FN void KKeepPlace(float& x) {
  asm volatile("" : "+f"(x)::"memory");
}
// The number, of which it is not known where it came from: what is made of it is not kept in
// registers from where it was made before, and no variable of a loop grows beside it.
template <class T>
KILN_FN T KAgain(T x) {
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
  return x;
}
// The block's number, read anew and not kept in a register.
KILN_FN int KBlockAgain() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
// Two numbers of 16 bits, the first one in the lower half.
template <bool kHalf>
KILN_FN unsigned KNarrowPair(float low, float high) {
  unsigned pair;
  if constexpr (kHalf) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// An address in the GPU's memory as a number.
KILN_FN unsigned long KGlobalAddress(const void* p) {
  return (unsigned long)(const __attribute__((address_space(1))) char*)p;
}
KILN_FN void KStoreGlobal(unsigned long to, KOctet x) {
  *(__attribute__((address_space(1))) KOctet*)to = x;
}
// 16 bytes on their way, of which the first `bytes` are read and the others become zeros.
KILN_FN void KCopyAsync(unsigned to, unsigned long from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
// The thread's copies since the last one are a group.
KILN_FN void KCopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until no more than its last kGroups groups are on their way.
template <int kGroups>
KILN_FN void KCopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
#endif
