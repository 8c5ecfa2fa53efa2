// Scaled dot-product attention, taken apart into products and a softmax.
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/lowering/matmul.h"
#include "compiler/lowering/reduction.h"
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
  size_t mask, dropout, is_causal, scale;
};

absl::StatusOr<Attention> ReadArguments(NodeContext& n, const Positions& p) {
  Attention a;
  KILN_ASSIGN_OR_RETURN(a.query, n.Tensor(0, "query"));
  KILN_ASSIGN_OR_RETURN(a.key, n.Tensor(1, "key"));
  KILN_ASSIGN_OR_RETURN(a.value, n.Tensor(2, "value"));
  const char* mask_name = n.Find(p.mask, "attn_bias") != nullptr ? "attn_bias" : "attn_mask";
  KILN_ASSIGN_OR_RETURN(a.mask, n.OptionalTensor(p.mask, mask_name));
  KILN_ASSIGN_OR_RETURN(const double dropout, n.Float(p.dropout, "dropout_p", 0));
  KILN_ASSIGN_OR_RETURN(a.is_causal, n.Bool(p.is_causal, "is_causal", false));
  KILN_ASSIGN_OR_RETURN(a.scale, n.Float(p.scale, "scale", 0));
  KILN_ASSIGN_OR_RETURN(const bool grouped, n.Bool(SIZE_MAX, "enable_gqa", false));
  if (dropout != 0) return n.Decline("with dropout");
  if (a.query.sizes.size() != 4 || a.key.sizes.size() != 4 || a.value.sizes.size() != 4) {
    return n.Decline("other than 4 dimensions");
  }
  const IntExpr width = a.query.sizes[3];
  if (!width.is_const() || width.value() == 0 || grouped || !IsFloat(a.query.dtype)) {
    return n.Decline("grouped, of integers, or of symbolic width");
  }
  if (a.scale == 0) a.scale = 1 / std::sqrt(static_cast<double>(width.value()));
  const Ints& q = a.query.sizes;
  const Ints& v = a.value.sizes;
  KILN_RETURN_IF_ERROR(n.CheckSizes(a.key.sizes, {q[0], q[1], v[2], width}, "the key"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(v, {q[0], q[1], v[2], v[3]}, "the value"));
  KILN_RETURN_IF_ERROR(n.CheckSizes(n.Result(0).sizes, {q[0], q[1], q[2], v[3]}, "the result"));
  if (a.mask) KILN_RETURN_IF_ERROR(n.CheckBroadcast(a.mask->sizes, {q[0], q[1], q[2], v[2]}));
  return a;
}

// scores * scale, with the mask added and what causality forbids at -inf.
void EmitScores(NodeContext& n, const Attention& a, const View& product, const View& scores) {
  n.Pointwise(scores, [&](KernelBuilder& b, const Ints& at) {
    Scalar score = b.Op(kMul, b.Load(product, at), a.scale);
    const Scalar forbidden = b.Const(score.dtype, -std::numeric_limits<double>::infinity());
    if (a.is_causal) {
      score = b.Select(b.Op(kLe, b.Index(at[3]), b.Index(at[2])), score, forbidden);
    }
    if (!a.mask) return score;
    const Scalar mask = b.LoadBroadcast(*a.mask, at);
    if (mask.dtype == DType::kBool) return b.Select(mask, score, forbidden);
    return b.Op(kAdd, score, b.Cast(mask, score.dtype));
  });
}

absl::Status LowerAttention(NodeContext& n, const Positions& positions) {
  KILN_ASSIGN_OR_RETURN(const Attention a, ReadArguments(n, positions));
  const DType compute = ComputeType(a.query.dtype);
  const Ints& q = a.query.sizes;
  const Ints score_sizes{q[0], q[1], q[2], a.key.sizes[2]};
  const View product = n.NewTemp(score_sizes, compute);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, a.query, Permute(n.ints(), a.key, {0, 1, 3, 2}), product));
  const View scores = n.NewTemp(score_sizes, compute);
  EmitScores(n, a, product, scores);
  const View weights = n.NewTemp(score_sizes, compute);
  EmitSoftmax(n, scores, weights, 3, false);
  const View out = n.NewResult(0);
  KILN_RETURN_IF_ERROR(EmitMatmul(n, weights, a.value, out));
  n.SetResult(0, out);
  return absl::OkStatus();
}

}  // namespace

void RegisterAttention(Registry& registry) {
  constexpr size_t kByName = SIZE_MAX;
  const auto attention = [](Positions positions) {
    return [positions](NodeContext& n) { return LowerAttention(n, positions); };
  };
  registry["_scaled_dot_product_flash_attention_for_cpu.default"] =
      attention({kByName, 3, 4, kByName});
  registry["_scaled_dot_product_flash_attention.default"] = attention({kByName, 3, 4, kByName});
  registry["_scaled_dot_product_efficient_attention.default"] = attention({3, 5, 6, kByName});
  registry["scaled_dot_product_attention.default"] = attention({3, 4, 5, kByName});
}

}  // namespace kiln::lowering
