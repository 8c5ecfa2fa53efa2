// Activation functions: pointwise operators with constant parameters.
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "compiler/lowering/promotion.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using Parameters = std::vector<double>;
using ActivationBody = Scalar (*)(KernelBuilder&, Scalar, const Parameters&);

struct Parameter {
  const char* name;
  double otherwise;
};

// The element as float arithmetic takes it, then `body` with the operator's scalar arguments,
// which follow `self` in the schema.
Lowering Activation(std::vector<Parameter> parameters, ActivationBody body) {
  return [parameters = std::move(parameters), body](NodeContext& n) -> absl::Status {
    KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
    KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
    if (!IsFloat(n.Result(0).dtype)) return n.Decline("a result that is no float");
    Parameters values;
    for (size_t i = 0; i < parameters.size(); ++i) {
      KILN_ASSIGN_OR_RETURN(values.emplace_back(),
                            n.Float(i + 1, parameters[i].name, parameters[i].otherwise));
    }
    const DType compute = ComputeType(n.Result(0).dtype);
    n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
      return body(b, b.Cast(b.LoadBroadcast(self, at), compute), values);
    });
    return absl::OkStatus();
  };
}

// x's own zero where a bound is zero: of equal operands max and min give the second.
Scalar Clamp(KernelBuilder& b, Scalar x, double low, double high) {
  return b.Op(kMin, b.Const(x.dtype, high), b.Op(kMax, b.Const(x.dtype, low), x));
}

// min(max(x + 3, 0), 6)
Scalar Relu6Of3(KernelBuilder& b, Scalar x) {
  return Clamp(b, b.Op(kAdd, x, 3.0), 0, 6);
}

// Hendrycks and Gimpel, "Gaussian error linear units", 2016: exact, and the tanh approximation.
Scalar GeluExact(KernelBuilder& b, Scalar x) {
  const Scalar erf = b.Op(kErf, b.Op(kMul, x, 1 / std::numbers::sqrt2));
  return b.Op(kMul, b.Op(kMul, x, 0.5), b.Op(kAdd, erf, 1.0));
}

// x (1 + tanh(u)) / 2 = x / (1 + e^-2u): an exponential is cheaper than a tanh, and nothing cancels
// where tanh nears -1.
Scalar GeluTanh(KernelBuilder& b, Scalar x) {
  constexpr double kScale = -2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const Scalar cubic = b.Op(kAdd, b.Op(kMul, b.Op(kMul, x, x), kScale * 0.044715), kScale);
  return b.Op(kDiv, x, b.Op(kAdd, b.Op(kExp, b.Op(kMul, cubic, x)), 1.0));
}

absl::Status LowerGelu(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const std::string approximate, n.String(1, "approximate", "none"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  if (approximate != "none" && approximate != "tanh") {
    return n.BadGraph("the approximation of gelu", "'none' or 'tanh'");
  }
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = b.Widen(b.LoadBroadcast(self, at));
    return approximate == "none" ? GeluExact(b, x) : GeluTanh(b, x);
  });
  return absl::OkStatus();
}

// Of integers as well.
absl::Status LowerRelu(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  if (self.dtype == DType::kBool) return n.Decline("of bools");
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = b.Widen(b.LoadBroadcast(self, at));
    return b.Op(kMax, b.Const(x.dtype, 0.0), x);
  });
  return absl::OkStatus();
}

// p: alpha, scale, input_scale
Scalar Elu(KernelBuilder& b, Scalar x, const Parameters& p) {
  const Scalar negative = b.Op(kMul, b.Op(kExpm1, b.Op(kMul, x, p[2])), p[0] * p[1]);
  return b.Select(b.Op(kLt, x, 0.0), negative, b.Op(kMul, x, p[1]));
}

// p: beta, threshold; linear beyond the threshold, where exp would overflow.
Scalar Softplus(KernelBuilder& b, Scalar x, const Parameters& p) {
  const Scalar scaled = b.Op(kMul, x, p[0]);
  const Scalar soft = b.Op(kDiv, b.Op(kLog1p, b.Op(kExp, scaled)), p[0]);
  return b.Select(b.Op(kGt, scaled, p[1]), x, soft);
}

// log(1 / (1 + exp(-x))) without overflow: min(x, 0) - log1p(exp(-|x|)).
Scalar LogSigmoid(KernelBuilder& b, Scalar x, const Parameters&) {
  const Scalar tail = b.Op(kLog1p, b.Op(kExp, b.Op(kNeg, b.Op(kAbs, x))));
  return b.Op(kSub, b.Op(kMin, x, 0.0), tail);
}

// tensor or per-channel weight along dimension 1
absl::Status LowerPrelu(NodeContext& n) {
  KILN_ASSIGN_OR_RETURN(const View self, n.Tensor(0, "self"));
  KILN_ASSIGN_OR_RETURN(const View weight, n.Tensor(1, "weight"));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(self.sizes, n.Result(0).sizes));
  KILN_RETURN_IF_ERROR(n.CheckBroadcast(weight.sizes, self.sizes));
  n.PointwiseResult(0, [&](KernelBuilder& b, const Ints& at) {
    const Scalar x = b.Widen(b.LoadBroadcast(self, at));
    const Scalar scaled = b.Op(kMul, x, b.Widen(b.LoadBroadcast(weight, at)));
    return b.Select(b.Op(kGt, x, 0.0), x, scaled);
  });
  return absl::OkStatus();
}

}  // namespace

void RegisterActivations(Registry& registry) {
  registry["relu.default"] = LowerRelu;
  registry["gelu.default"] = LowerGelu;
  registry["_prelu_kernel.default"] = LowerPrelu;
  registry["silu.default"] = Activation({}, [](KernelBuilder& b, Scalar x, const Parameters&) {
    return b.Op(kMul, x, b.Op(kSigmoid, x));
  });
  registry["mish.default"] = Activation({}, [](KernelBuilder& b, Scalar x, const Parameters&) {
    return b.Op(kMul, x, b.Op(kTanh, Softplus(b, x, {1, 20})));
  });
  registry["hardtanh.default"] = Activation(
      {{"min_val", -1}, {"max_val", 1}},
      [](KernelBuilder& b, Scalar x, const Parameters& p) { return Clamp(b, x, p[0], p[1]); });
  registry["relu6.default"] = Activation(
      {}, [](KernelBuilder& b, Scalar x, const Parameters&) { return Clamp(b, x, 0, 6); });
  registry["hardswish.default"] = Activation({}, [](KernelBuilder& b, Scalar x, const Parameters&) {
    return b.Op(kDiv, b.Op(kMul, x, Relu6Of3(b, x)), 6.0);
  });
  registry["hardsigmoid.default"] =
      Activation({}, [](KernelBuilder& b, Scalar x, const Parameters&) {
        return b.Op(kDiv, Relu6Of3(b, x), 6.0);
      });
  registry["leaky_relu.default"] =
      Activation({{"negative_slope", 0.01}}, [](KernelBuilder& b, Scalar x, const Parameters& p) {
        return b.Select(b.Op(kGt, x, 0.0), x, b.Op(kMul, x, p[0]));
      });
  registry["threshold.default"] = Activation(
      {{"threshold", 0}, {"value", 0}}, [](KernelBuilder& b, Scalar x, const Parameters& p) {
        return b.Select(b.Op(kLe, x, p[0]), b.Const(x.dtype, p[1]), x);
      });
  registry["elu.default"] = Activation({{"alpha", 1}, {"scale", 1}, {"input_scale", 1}}, Elu);
  registry["softplus.default"] = Activation({{"beta", 1}, {"threshold", 20}}, Softplus);
  registry["log_sigmoid_forward.default"] = Activation({}, LogSigmoid);
}

}  // namespace kiln::lowering
