// Scaled dot-product attention and its gradients, taken apart into products and a softmax.
//
// With S = scale * Q K^T + mask, L = log(sum over keys of exp(S)) (result 1, "logsumexp"), O = P V
// and P = exp(S - L), the gradients for dO are (FlashAttention-2, section 3.1.2):
//
//   dV = P^T dO     dP = dO V^T     dS = P * (dP - rowsum(dO * O))     dQ = scale dS K
//   dK = scale dS^T Q
//
// Where the operands are of bfloat16, P and dS are rounded to that before they are multiplied, as
// ATen's kernel does it: processors have dot products of it. Of float16 there are none that sum in
// float32, and P and dS stay that. The scale comes after the sums, where it costs least.
//
// A row whose keys are all forbidden has P = 0 and L = 0, as ATen's kernel has it. The forward pass
// multiplies with V before it divides by the sum: what lies between the products, which is the
// largest there is, is written once.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/lowering/matmul.h"
#include "compiler/lowering/registry.h"
#include "proto/base/status_macros.h"

namespace kiln::lowering {
namespace {

using enum ir::ScalarOp;
using ir::IntExpr;

struct Attention {
  View query, key, value;    // [batch, heads, length, width]
  std::optional<View> mask;  // bool keeps where true, a float is added
  bool is_causal = false;
  double scale = 0;
};

// Where each overload has its arguments; SIZE_MAX: by name only.
struct Positions {
  size_t query, mask, dropout, is_causal, scale;
};
constexpr size_t kByName = SIZE_MAX;

// `heads` heads out of fewer ones that serve several queries each.
View RepeatHeads(NodeContext& n, const View& view, IntExpr heads) {
  if (view.sizes[1] == heads) return view;
  const IntExpr group = n.ints().Const(heads.value() / view.sizes[1].value());
  Ints sizes = view.sizes;
  sizes[1] = heads;
  return Remap(n.ints(), view, sizes, [&](Ints at) {
    at[1] = n.ints().FloorDiv(at[1], group);
    return at;
  });
}

// Keys and values must have the query's heads, or a divisor of them.
bool HeadsFit(IntExpr heads, IntExpr shared) {
  if (heads == shared) return true;
  if (!heads.is_const() || !shared.is_const() || shared.value() == 0) return false;
  return heads.value() % shared.value() == 0;
}

absl::StatusOr<Attention> ReadArguments(NodeContext& n, const Positions& p) {
  Attention a;
  KILN_ASSIGN_OR_RETURN(a.query, n.Tensor(p.query, "query"));
  KILN_ASSIGN_OR_RETURN(a.key, n.Tensor(p.query + 1, "key"));
  KILN_ASSIGN_OR_RETURN(a.value, n.Tensor(p.query + 2, "value"));
  const char* mask_name = n.Find(p.mask, "attn_bias") != nullptr ? "attn_bias" : "attn_mask";
  KILN_ASSIGN_OR_RETURN(a.mask, n.OptionalTensor(p.mask, mask_name));
  KILN_ASSIGN_OR_RETURN(const double dropout, n.Float(p.dropout, "dropout_p", 0));
  KILN_ASSIGN_OR_RETURN(a.is_causal, n.Bool(p.is_causal, "is_causal", false));
  KILN_ASSIGN_OR_RETURN(a.scale, n.Float(p.scale, "scale", 0));
  if (dropout != 0) return n.Decline("with dropout");
  if (a.query.sizes.size() != 4 || a.key.sizes.size() != 4 || a.value.sizes.size() != 4) {
    return n.Decline("other than 4 dimensions");
  }
  const IntExpr width = a.query.sizes[3];
  if (!width.is_const() || width.value() == 0 || !IsFloat(a.query.dtype)) {
    return n.Decline("of integers or of symbolic width");
  }
  if (a.key.dtype != a.query.dtype || a.value.dtype != a.query.dtype) {
    return n.BadGraph("its operands' types differ", "one type");
  }
  if (n.Find(p.scale, "scale") == nullptr) {
    a.scale = 1 / std::sqrt(static_cast<double>(width.value()));
  }
  const Ints& q = a.query.sizes;
  const Ints& v = a.value.sizes;
  if (!HeadsFit(q[1], v[1])) return n.Decline("of heads in uneven groups");
  KILN_RETURN_IF_ERROR(n.CheckSizes(a.key.sizes, {q[0], v[1], v[2], width}, "the key"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(v, {q[0], v[1], v[2], v[3]}, "the value"));
  if (a.mask) KILN_RETURN_IF_ERROR(n.CheckBroadcast(a.mask->sizes, {q[0], q[1], q[2], v[2]}));
  return a;
}

// Of what lies between the products and is an operand of the second one.
DType OperandType(const Attention& a) {
  return a.value.dtype == DType::kBF16 ? a.value.dtype : ComputeType(a.value.dtype);
}

View Transposed(NodeContext& n, const View& matrix) {
  return Permute(n.ints(), matrix, {0, 1, 3, 2});
}

// What `product`, an element of Q K^T, gives at `at`: scaled, with the mask added and what
// causality forbids at -inf.
Scalar Score(KernelBuilder& b, const Attention& a, Scalar product, const Ints& at) {
  Scalar score = b.Op(kMul, product, a.scale);
  const Scalar forbidden = b.Const(score.dtype, -std::numeric_limits<double>::infinity());
  if (a.is_causal) {
    score = b.Select(b.Op(kLe, b.Index(at[3]), b.Index(at[2])), score, forbidden);
  }
  if (!a.mask) return score;
  const Scalar mask = b.LoadBroadcast(*a.mask, at);
  if (mask.dtype == DType::kBool) return b.Select(mask, score, forbidden);
  return b.Op(kAdd, score, b.Cast(mask, score.dtype));
}

absl::StatusOr<View> EmitScores(NodeContext& n, const Attention& a, const Ints& sizes) {
  const DType compute = ComputeType(a.query.dtype);
  const View product = n.NewTemp(sizes, compute);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, a.query, Transposed(n, a.key), product));
  const View scores = n.NewTemp(sizes, compute);
  n.Pointwise(scores, [&](KernelBuilder& b, const Ints& at) {
    return Score(b, a, b.Load(product, at), at);
  });
  return scores;
}

// One kernel: weights = exp(scores - their row's maximum), factor = 1 / sum of weights, and
// logsumexp where asked for.
void EmitWeights(NodeContext& n, const Attention& a, const View& scores, const View& weights,
                 const View& row_factor, const std::optional<View>& logsumexp) {
  KernelBuilder b = n.NewKernel();
  const Ints outer = b.Outer({scores.sizes[0], scores.sizes[1], scores.sizes[2]});
  const Ints keys{scores.sizes[3]};
  const auto at = [&](const Ints& inner) { return Ints{outer[0], outer[1], outer[2], inner[0]}; };
  const auto load = [&](const Ints& inner) { return b.Load(scores, at(inner)); };
  Scalar max = b.Reduce(ir::ReduceKind::kMax, load(b.StartPhase(keys)));
  Scalar zero;
  if (a.mask) {
    b.StartPhase();
    zero = b.Const(max.dtype, 0.0);
    const Scalar none = b.Const(max.dtype, -std::numeric_limits<double>::infinity());
    max = b.Select(b.Op(kEq, max, none), zero, max);
  }
  const Ints inner = b.StartPhase(keys);
  const Scalar weight = b.Op(kExp, b.Op(kSub, load(inner), max));
  b.Store(weights, at(inner), b.Cast(weight, weights.dtype));
  const Scalar sum = b.Reduce(ir::ReduceKind::kSum, weight);
  b.StartPhase();
  Scalar factor = b.Op(kDiv, b.Const(sum.dtype, 1.0), sum);
  Scalar log_sum = b.Op(kAdd, max, b.Op(kLog, sum));
  if (a.mask) {
    const Scalar is_empty = b.Op(kEq, sum, zero);
    factor = b.Select(is_empty, zero, factor);
    log_sum = b.Select(is_empty, zero, log_sum);
  }
  b.Store(row_factor, outer, factor);
  if (logsumexp) b.Store(*logsumexp, outer, log_sum);
  b.Finish();
}

// Results from number 2 on that are used: states of random numbers, which nothing depends on
// without dropout.
absl::Status EmitStates(NodeContext& n) {
  std::vector<size_t> states;
  for (size_t i = 2; i < n.num_results(); ++i) {
    if (!n.ResultUsed(i)) continue;
    if (!n.HasResult(i) || n.Result(i).dtype != DType::kI64 || !n.Result(i).sizes.empty()) {
      return n.Decline("of a result that is used");
    }
    states.push_back(i);
  }
  if (states.empty()) return absl::OkStatus();
  KernelBuilder b = n.NewKernel();
  b.Outer({});
  b.StartPhase();
  for (const size_t i : states) {
    const View state = n.NewResult(i);
    b.Store(state, {}, b.ConstInt(DType::kI64, 0));
    n.SetResult(i, state);
  }
  b.Finish();
  return absl::OkStatus();
}

// Of a row's log sums: whether they are those of a column each, as cuDNN has them.
bool IsColumn(const Ints& sizes) {
  return sizes.size() == 4 && sizes[3].is_const(1);
}

// As [batch, heads, length].
View AsRows(NodeContext& n, const View& log_sums) {
  if (!IsColumn(log_sums.sizes)) return log_sums;
  const Ints sizes(log_sums.sizes.begin(), log_sums.sizes.end() - 1);
  return Remap(n.ints(), log_sums, sizes, [&](Ints at) {
    at.push_back(n.ints().Const(0));
    return at;
  });
}

absl::Status LowerAttention(NodeContext& n, const Positions& positions) {
  KILN_ASSIGN_OR_RETURN(Attention a, ReadArguments(n, positions));
  const Ints& q = a.query.sizes;
  KILN_RETURN_IF_ERROR(
      n.CheckSizes(n.Result(0).sizes, {q[0], q[1], q[2], a.value.sizes[3]}, "the result"));
  const Ints row_sizes{q[0], q[1], q[2]};
  std::optional<View> logsumexp;
  if (n.num_results() > 1 && n.ResultUsed(1)) {
    const Ints& sizes = n.Result(1).sizes;
    // Some GPU kernels pad it.
    if (Ints(sizes.begin(), sizes.end() - (IsColumn(sizes) ? 1 : 0)) != row_sizes) {
      return n.Decline("with padded logsumexp");
    }
    const View result = n.NewResult(1);
    n.SetResult(1, result);
    logsumexp = AsRows(n, result);
  }
  a.key = RepeatHeads(n, a.key, q[1]);
  a.value = RepeatHeads(n, a.value, q[1]);
  const Ints score_sizes{q[0], q[1], q[2], a.key.sizes[2]};
  KILN_ASSIGN_OR_RETURN(const View scores, EmitScores(n, a, score_sizes));
  const View weights = n.NewTemp(score_sizes, OperandType(a));
  const View row_factor = n.NewTemp(row_sizes, scores.dtype);
  EmitWeights(n, a, scores, weights, row_factor, logsumexp);
  const View out = n.NewResult(0);
  const View sums = n.NewTemp(out.sizes, scores.dtype);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, weights, a.value, sums));
  n.Pointwise(out, [&](KernelBuilder& b, const Ints& at) {
    const Scalar factor = b.Load(row_factor, {at[0], at[1], at[2]});
    return b.Cast(b.Op(kMul, b.Load(sums, at), factor), out.dtype);
  });
  n.SetResult(0, out);
  n.EndTogether();
  return EmitStates(n);
}

// P of the forward pass, from its logsumexp.
absl::StatusOr<View> EmitWeightsAgain(NodeContext& n, const Attention& a, const View& logsumexp,
                                      const Ints& sizes) {
  KILN_ASSIGN_OR_RETURN(const View scores, EmitScores(n, a, sizes));
  const View weights = n.NewTemp(sizes, scores.dtype);
  n.Pointwise(weights, [&](KernelBuilder& b, const Ints& at) {
    const Scalar log_sum = b.Load(logsumexp, {at[0], at[1], at[2]});
    return b.Op(kExp, b.Op(kSub, b.Load(scores, at), b.Cast(log_sum, scores.dtype)));
  });
  return weights;
}

// `x` as an operand of a product of operands of `dtype`.
View Narrowed(NodeContext& n, const View& x, DType dtype) {
  if (x.dtype == dtype) return x;
  const View narrow = n.NewTemp(x.sizes, dtype);
  n.Pointwise(narrow,
              [&](KernelBuilder& b, const Ints& at) { return b.Cast(b.Load(x, at), dtype); });
  return narrow;
}

// Result number `result`: scale * sums.
void EmitScaled(NodeContext& n, const View& sums, double scale, size_t result) {
  const View out = n.NewResult(result);
  n.Pointwise(out, [&](KernelBuilder& k, const Ints& at) {
    return k.Cast(k.Op(kMul, k.Load(sums, at), scale), out.dtype);
  });
  n.SetResult(result, out);
}

// out[b, h, k] = factors[b, h, q, k] rows[b, h, q], summed over q and, of `of_key` heads that share
// one of `out`, over those.
absl::Status EmitTurnedProduct(NodeContext& n, const View& factors, const View& rows,
                               int64_t of_key, const View& out) {
  if (of_key == 1) return EmitMatmul(n, Transposed(n, factors), rows, out);
  const DType compute = ComputeType(factors.dtype);
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(out.sizes);
  const Ints inner = k.StartPhase({n.ints().Const(of_key), rows.sizes[2]});
  const IntExpr head = n.ints().Add(n.ints().Mul(outer[1], of_key), inner[0]);
  const Scalar x = k.Cast(k.Load(factors, {outer[0], head, inner[1], outer[2]}), compute);
  const Scalar y = k.Cast(k.Load(rows, {outer[0], head, inner[1], outer[3]}), compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, x, y));
  k.StartPhase();
  k.Store(out, outer, sum);
  k.Finish();
  return absl::OkStatus();
}

// rowsum(a * b) over the last dimension.
View EmitRowDots(NodeContext& n, const View& a, const View& b) {
  const DType compute = ComputeType(a.dtype);
  const View dots = n.NewTemp({a.sizes[0], a.sizes[1], a.sizes[2]}, compute);
  KernelBuilder k = n.NewKernel();
  const Ints outer = k.Outer(dots.sizes);
  Ints at = outer;
  at.push_back(k.StartPhase({a.sizes[3]})[0]);
  const Scalar x = k.Cast(k.Load(a, at), compute);
  const Scalar sum = k.Reduce(ir::ReduceKind::kSum, k.Op(kMul, x, k.Cast(k.Load(b, at), compute)));
  k.StartPhase();
  k.Store(dots, outer, sum);
  k.Finish();
  return dots;
}

// (grad_out, query, key, value, out, logsumexp, ...). A device may take all together but for the
// rows' sums before and the queries' gradient after it, of which it gives the sums. `shares`:
// whether heads may share keys.
absl::Status LowerAttentionBackward(NodeContext& n, const Positions& positions, bool shares) {
  KILN_RETURN_IF_ERROR(n.CheckResults(3));
  KILN_ASSIGN_OR_RETURN(Attention a, ReadArguments(n, positions));
  KILN_ASSIGN_OR_RETURN(const View grad, n.Tensor(0, "grad_out"));
  KILN_ASSIGN_OR_RETURN(const View out, n.Tensor(4, "out"));
  KILN_ASSIGN_OR_RETURN(const View given, n.Tensor(5, "logsumexp"));
  const View logsumexp = AsRows(n, given);
  const Ints& q = a.query.sizes;
  const IntExpr key_heads = a.key.sizes[1];
  if (key_heads != q[1] && !shares) return n.Decline("of heads that share keys");
  const int64_t of_key = key_heads == q[1] ? 1 : q[1].value() / key_heads.value();
  const Ints row_sizes{q[0], q[1], q[2]};
  const Ints out_sizes{q[0], q[1], q[2], a.value.sizes[3]};
  KILN_RETURN_IF_ERROR(n.CheckSizes(grad.sizes, out_sizes, "the gradient"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(out.sizes, out_sizes, "the output"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(logsumexp.sizes, row_sizes, "logsumexp"));
  const View* operands[] = {&a.query, &a.key, &a.value};
  for (size_t i = 0; i < 3; ++i) {
    KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(i).sizes, operands[i]->sizes, "a gradient"));
  }
  a.key = RepeatHeads(n, a.key, q[1]);
  a.value = RepeatHeads(n, a.value, q[1]);

  const View dots = EmitRowDots(n, grad, out);
  n.BeginTogether();
  const Ints score_sizes{q[0], q[1], q[2], a.key.sizes[2]};
  KILN_ASSIGN_OR_RETURN(const View weights, EmitWeightsAgain(n, a, logsumexp, score_sizes));
  const View grad_weights = n.NewTemp(score_sizes, weights.dtype);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, grad, Transposed(n, a.value), grad_weights));
  const View grad_scores = n.NewTemp(score_sizes, OperandType(a));
  n.Pointwise(grad_scores, [&](KernelBuilder& b, const Ints& at) {
    const Scalar dot = b.Load(dots, {at[0], at[1], at[2]});
    const Scalar centred = b.Op(kSub, b.Load(grad_weights, at), dot);
    return b.Cast(b.Op(kMul, b.Load(weights, at), centred), grad_scores.dtype);
  });

  const DType compute = ComputeType(a.query.dtype);
  const View key_sums = n.NewTemp(n.Result(1).sizes, compute);
  KILN_RETURN_IF_ERROR(EmitTurnedProduct(n, grad_scores, a.query, of_key, key_sums));
  EmitScaled(n, key_sums, a.scale, 1);
  const View grad_value = n.NewResult(2);
  const View factors = Narrowed(n, weights, OperandType(a));
  KILN_RETURN_IF_ERROR(EmitTurnedProduct(n, factors, grad, of_key, grad_value));
  n.SetResult(2, grad_value);
  const View query_sums = n.NewTemp(q, compute);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, grad_scores, a.key, query_sums));
  n.EndTogether();
  EmitScaled(n, query_sums, a.scale, 0);
  return absl::OkStatus();
}

}  // namespace

void RegisterAttention(Registry& registry) {
  const auto attention = [](Positions positions) {
    return [positions](NodeContext& n) { return LowerAttention(n, positions); };
  };
  registry["_scaled_dot_product_flash_attention_for_cpu.default"] =
      attention({0, kByName, 3, 4, kByName});
  registry["_scaled_dot_product_flash_attention.default"] = attention({0, kByName, 3, 4, kByName});
  registry["_scaled_dot_product_efficient_attention.default"] = attention({0, 3, 5, 6, kByName});
  registry["_scaled_dot_product_cudnn_attention.default"] = attention({0, 3, 5, 6, kByName});
  registry["scaled_dot_product_attention.default"] = attention({0, 3, 4, 5, kByName});
  const auto backward = [](Positions positions, bool shares) {
    return [positions, shares](NodeContext& n) {
      return LowerAttentionBackward(n, positions, shares);
    };
  };
  registry["_scaled_dot_product_flash_attention_for_cpu_backward.default"] =
      backward({1, kByName, 6, 7, kByName}, /*shares=*/false);
  registry["_scaled_dot_product_cudnn_attention_backward.default"] =
      backward({1, 8, 13, 14, kByName}, /*shares=*/true);
}

}  // namespace kiln::lowering
