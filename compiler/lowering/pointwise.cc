// Pointwise operators of one tensor.
#include <cmath>
#include <numbers>
#include <utility>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using UnaryBody = Scalar (*)(KernelBuilder&, Scalar);

// The element in the type that the result's arithmetic is done in, then `body`.
absl::Status LowerUnary(NodeContext& n, const std::function<Scalar(KernelBuilder&, Scalar)>& body) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  const DType compute = ComputeType(n.Result(0).dtype);
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return body(b, b.Cast(b.LoadBroadcast(self, at), compute));
  });
  return absl::OkStatus();
}

Lowering FloatUnary(ir::ScalarOp op) {
  return [op](NodeContext& n) -> absl::Status {
    if (!IsFloat(n.Result(0).dtype)) return n.Decline("a result that is no float");
    return LowerUnary(n, [op](KernelBuilder& b, Scalar x) { return b.Op(op, x); });
  };
}

// Takes integers as well; bool is declined, as eager refuses it.
Lowering NumberUnary(ir::ScalarOp op) {
  return [op](NodeContext& n) -> absl::Status {
    if (n.Result(0).dtype == DType::kBool) return n.Decline("of a bool");
    return LowerUnary(n, [op](KernelBuilder& b, Scalar x) { return b.Op(op, x); });
  };
}

// Integers are their own floor, ceiling, ...
Lowering Rounding(ir::ScalarOp op) {
  return [op](NodeContext& n) {
    return LowerUnary(
        n, [op](KernelBuilder& b, Scalar x) { return IsFloat(x.dtype) ? b.Op(op, x) : x; });
  };
}

// float -> bool; integers are neither infinite nor NaN.
absl::Status LowerPredicate(NodeContext& n, UnaryBody body, bool for_integers) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    if (!IsFloat(self.dtype)) return b.ConstInt(DType::kBool, for_integers);
    return body(b, b.Widen(b.LoadBroadcast(self, at)));
  });
  return absl::OkStatus();
}

Lowering Predicate(UnaryBody body, bool for_integers) {
  return [body, for_integers](NodeContext& n) { return LowerPredicate(n, body, for_integers); };
}

Lowering Unary(UnaryBody body) {
  return [body](NodeContext& n) { return LowerUnary(n, body); };
}

Lowering FloatBody(UnaryBody body) {
  return [body](NodeContext& n) -> absl::Status {
    if (!IsFloat(n.Result(0).dtype)) return n.Decline("a result that is no float");
    return LowerUnary(n, body);
  };
}

absl::Status LowerLogicalNot(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    return b.Op(kNot, b.Cast(b.Widen(b.LoadBroadcast(self, at)), DType::kBool));
  });
  return absl::OkStatus();
}

absl::Status LowerRound(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const int64_t decimals, n.ConstInt(1, "decimals", 0));
  if (decimals != 0) return n.Decline("rounding to decimals");
  return Rounding(kRound)(n);
}

}  // namespace

void RegisterPointwise(Registry& registry) {
  const std::pair<const char*, ir::ScalarOp> floats[] = {
      {"exp", kExp},     {"exp2", kExp2},   {"expm1", kExpm1}, {"log", kLog},
      {"log2", kLog2},   {"log10", kLog10}, {"log1p", kLog1p}, {"sqrt", kSqrt},
      {"rsqrt", kRsqrt}, {"sin", kSin},     {"cos", kCos},     {"tan", kTan},
      {"asin", kAsin},   {"acos", kAcos},   {"atan", kAtan},   {"sinh", kSinh},
      {"cosh", kCosh},   {"tanh", kTanh},   {"asinh", kAsinh}, {"acosh", kAcosh},
      {"atanh", kAtanh}, {"erf", kErf},     {"erfc", kErfc},   {"sigmoid", kSigmoid},
  };
  for (const auto& [name, op] : floats) registry[std::string(name) + ".default"] = FloatUnary(op);
  for (const auto& [name, op] : {std::pair{"neg", kNeg}, {"abs", kAbs}, {"sign", kSign}}) {
    registry[std::string(name) + ".default"] = NumberUnary(op);
  }
  for (const auto& [name, op] : {std::pair{"floor", kFloor}, {"ceil", kCeil}, {"trunc", kTrunc}}) {
    registry[std::string(name) + ".default"] = Rounding(op);
  }
  registry["fix.default"] = Rounding(kTrunc);
  registry["round.default"] = LowerRound;
  registry["round.decimals"] = [](NodeContext& n) { return n.Decline("rounding to decimals"); };
  registry["frac.default"] =
      FloatBody([](KernelBuilder& b, Scalar x) { return b.Op(kSub, x, b.Op(kTrunc, x)); });
  registry["reciprocal.default"] =
      FloatBody([](KernelBuilder& b, Scalar x) { return b.Op(kDiv, b.Const(x.dtype, 1.0), x); });
  registry["square.default"] = Unary([](KernelBuilder& b, Scalar x) { return b.Op(kMul, x, x); });
  registry["deg2rad.default"] =
      FloatBody([](KernelBuilder& b, Scalar x) { return b.Op(kMul, x, std::numbers::pi / 180); });
  registry["rad2deg.default"] =
      FloatBody([](KernelBuilder& b, Scalar x) { return b.Op(kMul, x, 180 / std::numbers::pi); });
  registry["bitwise_not.default"] = Unary([](KernelBuilder& b, Scalar x) { return b.Op(kNot, x); });
  registry["logical_not.default"] = LowerLogicalNot;
  registry["isnan.default"] =
      Predicate([](KernelBuilder& b, Scalar x) { return b.Op(kIsNan, x); }, false);
  registry["isinf.default"] =
      Predicate([](KernelBuilder& b, Scalar x) { return b.Op(kIsInf, x); }, false);
  registry["isfinite.default"] =
      Predicate([](KernelBuilder& b,
                   Scalar x) { return b.Op(kLt, b.Op(kAbs, x), b.Const(x.dtype, HUGE_VAL)); },
                true);
  registry["signbit.default"] = [](NodeContext& n) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
    KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
    n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
      const Scalar x = b.Widen(b.LoadBroadcast(self, at));
      if (!IsFloat(x.dtype)) return b.Op(kLt, x, b.ConstInt(x.dtype, 0));
      // The sign of a zero shows only when it is moved to another number.
      return b.Op(kLt, b.Op(kCopysign, b.Const(x.dtype, 1.0), x), 0.0);
    });
    return absl::OkStatus();
  };
}

}  // namespace kiln::lowering
