// ---- Sorting -------------------------------------------------------------------------------

KILN_FN void KInsertionSort(long* row, long n) {
  for (long i = 1; i < n; ++i) {
    const long x = row[i];
    long at = i;
    for (; at > 0 && row[at - 1] > x; --at) row[at] = row[at - 1];
    row[at] = x;
  }
}

// `row` in ascending order, by digits of 8 bits from the lowest on (Knuth, "The Art of Computer
// Programming" 5.2.5, radix list sort): a pass keeps the order of equal digits, so digits in which
// all elements agree need none, nor do the lower halves where they ascend already.
static __attribute__((noinline)) void KSort(long* row, long* scratch, long n) {
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
  long *from = row, *to = scratch;
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
    long* const other = from;
    from = to;
    to = other;
  }
  if (from != row) __builtin_memcpy(row, from, n * sizeof(long));
}

// row[0, k) = the k least of it, ascending. Those that may be among them gather in `scratch`; when
// it holds many, the k least of those stay.
static __attribute__((noinline)) void KSelectLeast(long* row, long* scratch, long n, long k) {
  const long most = k < 64 ? 256 : 4 * k;
  if (k * 2 > n || most > n) return KSort(row, scratch, n);
  long held = 0, least_outside = 0x7fffffffffffffff;
  for (long i = 0; i < n; ++i) {
    if (row[i] >= least_outside) continue;
    scratch[held++] = row[i];
    if (held < most) continue;
    KSort(scratch, row, held);  // what stood in the row's beginning is not needed any more
    held = k;
    least_outside = scratch[k - 1];
  }
  KSort(scratch, row, held);
  __builtin_memcpy(row, scratch, k * sizeof(long));
}
