// Compiled once for each instruction set: KILN_TABLE is the table's name. It includes the text that
// generated kernels start with, and like them no header of C.
#include "tests/unit/compiler/codegen/lane_access.h"

namespace {
// clang-format off
#include "compiler/codegen/source/prelude_core.inc.h"
#include "compiler/codegen/cpp/prelude_memory.inc.h"
// clang-format on

template <int W>
Vec<bool, W> MaskOf(const unsigned char* mask) {
  return __builtin_convertvector(KLoadAll<W>(mask), Vec<bool, W>);
}
template <class T>
T Ones() {
  if constexpr (kSameType<T, bool>) {
    return true;
  } else {
    return __builtin_bit_cast(T, (KInt<T>)-1);
  }
}
template <class T, int W>
void LoadWhere(const void* from, const unsigned char* mask, void* to) {
  KStoreAll((T*)to, KLoadMasked<W, false>((const T*)from, W, MaskOf<W>(mask), Ones<T>()));
}
template <class T, int W>
void LoadEvenWhere(const void* from, const unsigned char* mask, void* to) {
  KStoreAll((T*)to, KLoadEvenMasked<W, false>((const T*)from, W, MaskOf<W>(mask), Ones<T>()));
}
template <class T, int W>
void LoadFirst(const void* from, long n, void* to) {
  KStoreAll((T*)to, KLoad<W, true>((const T*)from, n));
}
template <class T, int W>
void LoadEvenFirst(const void* from, long n, void* to) {
  KStoreAll((T*)to, KLoadEven<W, true>((const T*)from, n));
}
template <class T, int W>
void StoreFirst(void* to, long n, const void* from) {
  KStore<true>((T*)to, n, KLoadAll<W>((const T*)from));
}

template <class T, int W>
constexpr kiln::codegen::LaneAccess Access(const char* type) {
  return {type,
          sizeof(T),
          W,
          LoadWhere<T, W>,
          LoadEvenWhere<T, W>,
          LoadFirst<T, W>,
          LoadEvenFirst<T, W>,
          StoreFirst<T, W>};
}
#define KILN_WIDTHS(T)                                                                        \
  Access<T, 2>(#T), Access<T, 4>(#T), Access<T, 8>(#T), Access<T, 16>(#T), Access<T, 32>(#T), \
      Access<T, 64>(#T), Access<T, 128>(#T)
const kiln::codegen::LaneAccess kEntries[] = {
    KILN_WIDTHS(float), KILN_WIDTHS(double), KILN_WIDTHS(long),
    KILN_WIDTHS(int),   KILN_WIDTHS(short),  KILN_WIDTHS(_Float16),
    KILN_WIDTHS(KBf16), KILN_WIDTHS(bool),   KILN_WIDTHS(signed char)};

}  // namespace

namespace kiln::codegen {
const LaneAccesses KILN_TABLE = {KILN_SET_NAME, kEntries, sizeof(kEntries) / sizeof(kEntries[0])};
}  // namespace kiln::codegen
