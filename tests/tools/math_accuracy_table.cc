// Compiled once for each instruction set: KILN_TABLE is the table's name, KILN_WIDTH the lanes of a
// vector. It includes the text that generated kernels start with, and like them no header of C.
#include "tests/tools/math_accuracy_table.h"

#include "proto/base/cpu_kernel_abi.h"

namespace {
// clang-format off
#include "compiler/codegen/source/prelude_core.inc.h"
#include "compiler/codegen/cpp/prelude_memory.inc.h"
#include "compiler/codegen/cpp/prelude_division.inc.h"
#include "compiler/codegen/source/prelude_arithmetic.inc.h"
#include "compiler/codegen/source/prelude_math.inc.h"
#include "compiler/codegen/source/prelude_trigonometry.inc.h"
#include "compiler/codegen/source/prelude_math_double.inc.h"
// clang-format on

constexpr int kWidth = KILN_WIDTH;

template <class F>
void ApplyUnary(const float* x, float* y, long count, F function) {
  for (long i = 0; i < count; i += kWidth) KStoreAll(y + i, function(KLoadAll<kWidth>(x + i)));
}
template <class F>
void ApplyBinary(const float* x, const float* y, float* z, long count, F function) {
  for (long i = 0; i < count; i += kWidth) {
    KStoreAll(z + i, function(KLoadAll<kWidth>(x + i), KLoadAll<kWidth>(y + i)));
  }
}

using V = Vec<float, kWidth>;
#define KILN_UNARY(NAME)                                   \
  {#NAME, [](const float* x, float* y, long count) {       \
     ApplyUnary(x, y, count, [](V v) { return NAME(v); }); \
   }}
#define KILN_BINARY(NAME)                                              \
  {#NAME, [](const float* x, const float* y, float* z, long count) {   \
     ApplyBinary(x, y, z, count, [](V a, V b) { return NAME(a, b); }); \
   }}

const kiln::tools::UnaryFunction kUnary[] = {
    KILN_UNARY(KExp),   KILN_UNARY(KExp2),    KILN_UNARY(KExpm1), KILN_UNARY(KLog),
    KILN_UNARY(KLog2),  KILN_UNARY(KLog10),   KILN_UNARY(KLog1p), KILN_UNARY(KSin),
    KILN_UNARY(KCos),   KILN_UNARY(KTan),     KILN_UNARY(KAsin),  KILN_UNARY(KAcos),
    KILN_UNARY(KAtan),  KILN_UNARY(KSinh),    KILN_UNARY(KCosh),  KILN_UNARY(KTanh),
    KILN_UNARY(KAsinh), KILN_UNARY(KAcosh),   KILN_UNARY(KAtanh), KILN_UNARY(KErf),
    KILN_UNARY(KErfc),  KILN_UNARY(KSigmoid), {nullptr, nullptr}};
const kiln::tools::BinaryFunction kBinary[] = {
    KILN_BINARY(KPow), KILN_BINARY(KAtan2), {nullptr, nullptr}};

}  // namespace

namespace kiln::tools {
extern const FunctionTable KILN_TABLE = {KILN_SET_NAME, kUnary, kBinary};
}  // namespace kiln::tools
