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

// X(enumerator, spelling, arity, TypeRule, TypeClass, cost, text)
// `cost`: of one lane, roughly, in additions; memory accesses and moves count elsewhere. `text`:
// in a code generator's C++: an operator, or a function of its prelude.
#define KILN_SCALAR_OPS(X)                                                                       \
  /* Leaves and memory; arity -1: see Inst. */                                                   \
  X(kConst, "const", 0, kNone, kAny, 0, "")    /* immediate */                                   \
  X(kIndex, "index", 0, kNone, kAny, 0, "")    /* an IntExpr as i64 */                           \
  X(kLoad, "load", -1, kNone, kAny, 0, "")     /* buffer[indices], optional mask */              \
  X(kStore, "store", -1, kNone, kAny, 0, "")   /* buffer[indices] = value; no result */          \
  X(kReduce, "reduce", 1, kNone, kAny, 0, "")  /* over the phase's inner loop; see ReduceKind */ \
  X(kScan, "scan", 1, kNone, kNumber, 1, "")   /* the reduction up to and with this iteration */ \
  X(kSort, "sort", 1, kNone, kInteger, 20, "") /* the operand that comes r-th of all iterations, \
                                                  in iteration r; i64 */                         \
  /* Arithmetic. Integers wrap. */                                                               \
  X(kAdd, "add", 2, kSame, kNumber, 1, "+")                                                      \
  X(kSub, "sub", 2, kSame, kNumber, 1, "-")                                                      \
  X(kMul, "mul", 2, kSame, kNumber, 1, "*")                                                      \
  X(kDiv, "div", 2, kSame, kFloat, 4, "/")                                                       \
  X(kFloorDiv, "floordiv", 2, kSame, kNumber, 20,                                                \
    "KFloorDiv") /* floor(a / b); integers: 0 for b = 0 */                                       \
  X(kTruncDiv, "truncdiv", 2, kSame, kInteger, 20, "KTruncDiv")                                  \
  X(kMod, "mod", 2, kSame, kNumber, 20, "KMod")    /* sign of the divisor, as Python's % */      \
  X(kFmod, "fmod", 2, kSame, kNumber, 20, "KFmod") /* sign of the dividend, as C's */            \
  X(kNonzero, "nonzero", 1, kSame, kInteger, 1, "KNonzero") /* where it is 0, the run fails */   \
  X(kMin, "min", 2, kSame, kNumber, 1, "KMin")              /* NaN if either is NaN */           \
  X(kMax, "max", 2, kSame, kNumber, 1, "KMax")              /* NaN if either is NaN */           \
  X(kPow, "pow", 2, kSame, kFloat, 30, "KPow")                                                   \
  X(kAtan2, "atan2", 2, kSame, kFloat, 30, "KAtan2")                                             \
  X(kCopysign, "copysign", 2, kSame, kFloat, 1, "KCopysign")                                     \
  X(kFma, "fma", 3, kSame, kFloat, 1, "KFma") /* a * b + c, rounded once */                      \
  X(kNeg, "neg", 1, kSame, kNumber, 1, "-")                                                      \
  X(kAbs, "abs", 1, kSame, kNumber, 1, "KAbs")                                                   \
  X(kSign, "sign", 1, kSame, kNumber, 1, "KSign")                                                \
  /* Elementary functions. */                                                                    \
  X(kExp, "exp", 1, kSame, kFloat, 12, "KExp")                                                   \
  X(kExp2, "exp2", 1, kSame, kFloat, 12, "KExp2")                                                \
  X(kExpm1, "expm1", 1, kSame, kFloat, 12, "KExpm1")                                             \
  X(kLog, "log", 1, kSame, kFloat, 12, "KLog")                                                   \
  X(kLog2, "log2", 1, kSame, kFloat, 12, "KLog2")                                                \
  X(kLog10, "log10", 1, kSame, kFloat, 12, "KLog10")                                             \
  X(kLog1p, "log1p", 1, kSame, kFloat, 12, "KLog1p")                                             \
  X(kSqrt, "sqrt", 1, kSame, kFloat, 4, "KSqrt")                                                 \
  X(kRsqrt, "rsqrt", 1, kSame, kFloat, 4, "KRsqrt")                                              \
  X(kSin, "sin", 1, kSame, kFloat, 12, "KSin")                                                   \
  X(kCos, "cos", 1, kSame, kFloat, 12, "KCos")                                                   \
  X(kTan, "tan", 1, kSame, kFloat, 12, "KTan")                                                   \
  X(kAsin, "asin", 1, kSame, kFloat, 12, "KAsin")                                                \
  X(kAcos, "acos", 1, kSame, kFloat, 12, "KAcos")                                                \
  X(kAtan, "atan", 1, kSame, kFloat, 12, "KAtan")                                                \
  X(kSinh, "sinh", 1, kSame, kFloat, 12, "KSinh")                                                \
  X(kCosh, "cosh", 1, kSame, kFloat, 12, "KCosh")                                                \
  X(kTanh, "tanh", 1, kSame, kFloat, 12, "KTanh")                                                \
  X(kAsinh, "asinh", 1, kSame, kFloat, 12, "KAsinh")                                             \
  X(kAcosh, "acosh", 1, kSame, kFloat, 12, "KAcosh")                                             \
  X(kAtanh, "atanh", 1, kSame, kFloat, 12, "KAtanh")                                             \
  X(kErf, "erf", 1, kSame, kFloat, 12, "KErf")                                                   \
  X(kErfc, "erfc", 1, kSame, kFloat, 12, "KErfc")                                                \
  X(kSigmoid, "sigmoid", 1, kSame, kFloat, 12, "KSigmoid")                                       \
  X(kFloor, "floor", 1, kSame, kFloat, 1, "KFloor")                                              \
  X(kCeil, "ceil", 1, kSame, kFloat, 1, "KCeil")                                                 \
  X(kTrunc, "trunc", 1, kSame, kFloat, 1, "KTrunc")                                              \
  X(kRound, "round", 1, kSame, kFloat, 1, "KRound") /* half to even */                           \
  /* Bits; on bool these are the logical operations. */                                          \
  X(kAnd, "and", 2, kSame, kIntegral, 1, "&")                                                    \
  X(kOr, "or", 2, kSame, kIntegral, 1, "|")                                                      \
  X(kXor, "xor", 2, kSame, kIntegral, 1, "^")                                                    \
  X(kNot, "not", 1, kSame, kIntegral, 1, "~")                                                    \
  X(kShl, "shl", 2, kSame, kInteger, 1, "KShl")                                                  \
  X(kShr, "shr", 2, kSame, kInteger, 1, "KShr") /* arithmetic for signed types */                \
  /* 64 random bits (i64) of a seed, a stream and a place in it: words 0 (low) and 1 of          \
     Philox4x32-10 with the seed as key and the counter (place, stream), all low word first. */  \
  X(kPhilox, "philox", 3, kSame, kInteger, 40, "KPhilox")                                        \
  /* Comparison and choice. */                                                                   \
  X(kEq, "eq", 2, kCompare, kAny, 1, "KEq")                                                      \
  X(kNe, "ne", 2, kCompare, kAny, 1, "KNe")                                                      \
  X(kLt, "lt", 2, kCompare, kAny, 1, "KLt")                                                      \
  X(kLe, "le", 2, kCompare, kAny, 1, "KLe")                                                      \
  X(kGt, "gt", 2, kCompare, kAny, 1, "KGt")                                                      \
  X(kGe, "ge", 2, kCompare, kAny, 1, "KGe")                                                      \
  X(kIsNan, "isnan", 1, kPredicate, kFloat, 1, "KIsNan")                                         \
  X(kIsInf, "isinf", 1, kPredicate, kFloat, 1, "KIsInf")                                         \
  X(kSelect, "select", 3, kSelect, kAny, 1, "KSelect")                                           \
  X(kCast, "cast", 1, kCast, kAny, 0,                                                            \
    "KCast") /* float -> integer truncates; x -> bool is x != 0 */                               \
  X(kBitcast, "bitcast", 1, kCast, kAny, 0, "__builtin_bit_cast") /* equal sizes */

enum class ScalarOp : uint8_t {
#define X(e, s, a, r, c, cost, text) e,
  KILN_SCALAR_OPS(X)
#undef X
};

struct ScalarOpInfo {
  absl::string_view name;
  int arity;  // -1: see Inst
  TypeRule rule;
  TypeClass operands;
  int cost;
  absl::string_view text;
};

const ScalarOpInfo& Info(ScalarOp op);
// A function that takes tens of instructions, as an exponential.
inline bool IsElementary(ScalarOp op) {
  return Info(op).cost >= 12;
}
// Whether operands of this type are in the operation's class.
bool Takes(ScalarOp op, DType dtype);
std::optional<ScalarOp> ScalarOpFromName(absl::string_view name);

// What a `reduce` does; the identity is what an empty reduction gives. Its operand's type is its
// accumulation type: lowerings cast before. kAny and kAll take bool.
enum class ReduceKind : uint8_t {
  kSum,        // 0
  kProd,       // 1
  kMax,        // -inf or the least integer; NaN wins
  kMin,        // +inf or the greatest integer; NaN wins
  kLogAddExp,  // -inf; log(exp(a) + exp(b)) of floats
  kAny,        // false
  kAll,        // true
  kArgMax,  // result i64: number of the first greatest element in the inner loop's row-major order;
  kArgMin,  //             NaN wins over every number, the first NaN over later ones
};
// Whether numbers are folded one by one to a number: what a `scan` or a `store` may do.
inline bool FoldsNumbers(ReduceKind kind) {
  return kind <= ReduceKind::kLogAddExp;
}
// Whether the result is a place, not a value.
inline bool IsArg(ReduceKind kind) {
  return kind == ReduceKind::kArgMax || kind == ReduceKind::kArgMin;
}
// What gives of the results of two parts that of the whole; nothing where no one operation does.
std::optional<ScalarOp> CombinerOf(ReduceKind kind);
absl::string_view ReduceKindName(ReduceKind kind);  // "sum", "prod", ...
std::optional<ReduceKind> ReduceKindFromName(absl::string_view name);

}  // namespace kiln::ir
