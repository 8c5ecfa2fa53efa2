// The table of scalar operations: what the body of a kernel may consist of. It says once what is
// legal; builders, verifier, printer, parser, interpreter and code generators all read it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "proto/base/dtype.h"

namespace kiln::ir {

// How result and operand types relate.
enum class TypeRule : uint8_t {
  kSame,       // result and all operands share one type
  kCompare,    // operands share one type, result bool
  kSelect,     // (bool, T, T) -> T
  kCast,       // any -> the instruction's dtype
  kPredicate,  // (T) -> bool
  kNone,       // special: see the comment at the operation
};

// Which types an operation takes.
enum class TypeClass : uint8_t { kAny, kFloat, kInteger, kIntegral, kNumber, kBool };
// kInteger excludes bool, kIntegral includes it, kNumber is integer or float.

// X(enumerator, spelling, arity, TypeRule, TypeClass)
#define KILN_SCALAR_OPS(X)                                                                     \
  /* Leaves and memory; arity -1: see Inst. */                                                 \
  X(kConst, "const", 0, kNone, kAny)   /* immediate                                 */         \
  X(kIndex, "index", 0, kNone, kAny)   /* an IntExpr as i64                         */         \
  X(kLoad, "load", -1, kNone, kAny)    /* buffer[indices], optional mask            */         \
  X(kStore, "store", -1, kNone, kAny)  /* buffer[indices] = value; no result        */         \
  X(kReduce, "reduce", 1, kNone, kAny) /* over the phase's inner loop; see ReduceKind */       \
  /* Arithmetic. Integers wrap. */                                                             \
  X(kAdd, "add", 2, kSame, kNumber)                                                            \
  X(kSub, "sub", 2, kSame, kNumber)                                                            \
  X(kMul, "mul", 2, kSame, kNumber)                                                            \
  X(kDiv, "div", 2, kSame, kFloat)                                                             \
  X(kFloorDiv, "floordiv", 2, kSame, kNumber) /* floor(a / b); integers: 0 for b = 0 */        \
  X(kTruncDiv, "truncdiv", 2, kSame, kInteger)                                                 \
  X(kMod, "mod", 2, kSame, kNumber)   /* sign of the divisor, as Python's %          */        \
  X(kFmod, "fmod", 2, kSame, kNumber) /* sign of the dividend, as C's                */        \
  X(kMin, "min", 2, kSame, kNumber)   /* NaN if either is NaN                        */        \
  X(kMax, "max", 2, kSame, kNumber)   /* NaN if either is NaN                        */        \
  X(kPow, "pow", 2, kSame, kFloat)                                                             \
  X(kAtan2, "atan2", 2, kSame, kFloat)                                                         \
  X(kCopysign, "copysign", 2, kSame, kFloat)                                                   \
  X(kFma, "fma", 3, kSame, kFloat) /* a * b + c, rounded once                     */           \
  X(kNeg, "neg", 1, kSame, kNumber)                                                            \
  X(kAbs, "abs", 1, kSame, kNumber)                                                            \
  X(kSign, "sign", 1, kSame, kNumber)                                                          \
  /* Elementary functions. */                                                                  \
  X(kExp, "exp", 1, kSame, kFloat)                                                             \
  X(kExp2, "exp2", 1, kSame, kFloat)                                                           \
  X(kExpm1, "expm1", 1, kSame, kFloat)                                                         \
  X(kLog, "log", 1, kSame, kFloat)                                                             \
  X(kLog2, "log2", 1, kSame, kFloat)                                                           \
  X(kLog10, "log10", 1, kSame, kFloat)                                                         \
  X(kLog1p, "log1p", 1, kSame, kFloat)                                                         \
  X(kSqrt, "sqrt", 1, kSame, kFloat)                                                           \
  X(kRsqrt, "rsqrt", 1, kSame, kFloat)                                                         \
  X(kSin, "sin", 1, kSame, kFloat)                                                             \
  X(kCos, "cos", 1, kSame, kFloat)                                                             \
  X(kTan, "tan", 1, kSame, kFloat)                                                             \
  X(kAsin, "asin", 1, kSame, kFloat)                                                           \
  X(kAcos, "acos", 1, kSame, kFloat)                                                           \
  X(kAtan, "atan", 1, kSame, kFloat)                                                           \
  X(kSinh, "sinh", 1, kSame, kFloat)                                                           \
  X(kCosh, "cosh", 1, kSame, kFloat)                                                           \
  X(kTanh, "tanh", 1, kSame, kFloat)                                                           \
  X(kAsinh, "asinh", 1, kSame, kFloat)                                                         \
  X(kAcosh, "acosh", 1, kSame, kFloat)                                                         \
  X(kAtanh, "atanh", 1, kSame, kFloat)                                                         \
  X(kErf, "erf", 1, kSame, kFloat)                                                             \
  X(kErfc, "erfc", 1, kSame, kFloat)                                                           \
  X(kSigmoid, "sigmoid", 1, kSame, kFloat)                                                     \
  X(kFloor, "floor", 1, kSame, kFloat)                                                         \
  X(kCeil, "ceil", 1, kSame, kFloat)                                                           \
  X(kTrunc, "trunc", 1, kSame, kFloat)                                                         \
  X(kRound, "round", 1, kSame, kFloat) /* half to even                               */        \
  /* Bits; on bool these are the logical operations. */                                        \
  X(kAnd, "and", 2, kSame, kIntegral)                                                          \
  X(kOr, "or", 2, kSame, kIntegral)                                                            \
  X(kXor, "xor", 2, kSame, kIntegral)                                                          \
  X(kNot, "not", 1, kSame, kIntegral)                                                          \
  X(kShl, "shl", 2, kSame, kInteger)                                                           \
  X(kShr, "shr", 2, kSame, kInteger) /* arithmetic for signed types                  */        \
  /* Comparison and choice. */                                                                 \
  X(kEq, "eq", 2, kCompare, kAny)                                                              \
  X(kNe, "ne", 2, kCompare, kAny)                                                              \
  X(kLt, "lt", 2, kCompare, kAny)                                                              \
  X(kLe, "le", 2, kCompare, kAny)                                                              \
  X(kGt, "gt", 2, kCompare, kAny)                                                              \
  X(kGe, "ge", 2, kCompare, kAny)                                                              \
  X(kIsNan, "isnan", 1, kPredicate, kFloat)                                                    \
  X(kIsInf, "isinf", 1, kPredicate, kFloat)                                                    \
  X(kSelect, "select", 3, kSelect, kAny)                                                       \
  X(kCast, "cast", 1, kCast, kAny)       /* float -> integer truncates; x -> bool is x != 0 */ \
  X(kBitcast, "bitcast", 1, kCast, kAny) /* equal sizes                              */

enum class ScalarOp : uint8_t {
#define X(e, s, a, r, c) e,
  KILN_SCALAR_OPS(X)
#undef X
};

struct ScalarOpInfo {
  absl::string_view name;
  int arity;  // -1: see Inst
  TypeRule rule;
  TypeClass operands;
};

const ScalarOpInfo& Info(ScalarOp op);
// Whether operands of this type are in the operation's class.
bool Takes(ScalarOp op, DType dtype);
std::optional<ScalarOp> ScalarOpFromName(absl::string_view name);

// What a `reduce` does; the identity is what an empty reduction gives. Its operand's type is its
// accumulation type: lowerings cast before. kAny and kAll take bool.
enum class ReduceKind : uint8_t {
  kSum,     // 0
  kProd,    // 1
  kMax,     // -inf or the least integer; NaN wins
  kMin,     // +inf or the greatest integer; NaN wins
  kAny,     // false
  kAll,     // true
  kArgMax,  // result i64: number of the first greatest element in the inner loop's row-major order;
  kArgMin,  //             NaN wins over every number, the first NaN over later ones
};
absl::string_view ReduceKindName(ReduceKind kind);  // "sum", "prod", ...
std::optional<ReduceKind> ReduceKindFromName(absl::string_view name);

}  // namespace kiln::ir
