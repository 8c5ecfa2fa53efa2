#include "compiler/schedule/ptx/attention_reader.h"

#include <algorithm>
#include <limits>

namespace kiln::schedule::ptx {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

}  // namespace

AttentionReader::Parts AttentionReader::ReadProduct(KernelReader& r, size_t loops) {
  r.Begin(loops);
  if (const IntExpr loop = r.Loop()) depth_ = loop;
  if (loops > 1) group_ = r.OuterLoop();
  const Inst& a = r.Take(ScalarOp::kLoad);
  const Inst& wide_a = r.Widened(a);
  const Inst& b = r.Take(ScalarOp::kLoad);
  const Inst& wide_b = r.Widened(b);
  const Inst& product = r.Take(ScalarOp::kMul, {&wide_a, &wide_b});
  r.Check(product.dtype == DType::kF32);
  const Inst& sum = r.Reduce(ReduceKind::kSum, product);
  r.Begin(0);
  const Inst* stored = &sum;
  if (r.Peek(ScalarOp::kCast)) stored = &r.Take(ScalarOp::kCast, {&sum});
  const Inst& store = r.Take(ScalarOp::kStore, {stored});
  return {&a, &b, &store};
}

bool AttentionReader::FindScores(std::optional<int64_t> of_key) {
  KernelReader r(*kernels_[0]);
  const auto [a, b, store] = ReadProduct(r);
  if (!r.IsRight() || store->indices.size() != 4) return false;
  const std::vector<IntExpr>& sizes = module_.buffers[store->buffer].sizes;
  found_.batches = sizes[0];
  found_.heads = sizes[1];
  found_.queries = sizes[2];
  found_.keys = sizes[3];
  products_ = store->buffer;
  if (!depth_.extent().is_const()) return false;
  found_.width = depth_.extent().value();
  const std::vector<IntExpr>& at = store->indices;
  found_.of_key = of_key.value_or(1);
  return AreWhole(at) && SetOperand(found_.query, *a, {at[0], at[1], at[2], depth_}, 1) &&
         (of_key ? SetOperand(found_.key, *b, {at[0], at[1], at[3], depth_}, *of_key)
                 : FindSharing(*b, {at[0], at[1], at[3], depth_}));
}

bool AttentionReader::FindScaled() {
  KernelReader r(*kernels_[1]);
  r.Begin(0);
  const Inst& product = r.LoadOf(products_);
  const Inst& scale = r.Take(ScalarOp::kConst);
  const Inst* score = &r.Take(ScalarOp::kMul, {&product, &scale});
  const Inst& forbidden = r.Constant(kNever);
  std::vector<IntExpr> seen;
  if (r.Peek(ScalarOp::kIndex)) {
    const Inst& key = r.Take(ScalarOp::kIndex);
    const Inst& row = r.Take(ScalarOp::kIndex);
    const Inst& is_seen = r.Take(ScalarOp::kLe, {&key, &row});
    score = &r.Take(ScalarOp::kSelect, {&is_seen, score, &forbidden});
    found_.is_causal = true;
    if (r.IsRightSoFar()) seen = {row.indices[0], key.indices[0]};
  }
  const Inst* mask = nullptr;
  if (r.Peek(ScalarOp::kLoad)) {
    mask = &r.Take(ScalarOp::kLoad);
    if (mask->dtype == DType::kBool) {
      score = &r.Take(ScalarOp::kSelect, {mask, score, &forbidden});
    } else {
      const Inst& wide = r.Widened(*mask);
      score = &r.Take(ScalarOp::kAdd, {score, &wide});
    }
  }
  const Inst& store = r.Take(ScalarOp::kStore, {score});
  if (!r.IsRight() || store.dtype != DType::kF32) return false;
  scores_ = store.buffer;
  found_.scale = scale.immediate_float;
  const std::vector<IntExpr>& at = store.indices;
  if (!AreWhole(at) || product.indices != at) return false;
  if (found_.is_causal && seen != std::vector{at[2], at[3]}) return false;
  return mask == nullptr || SetOperand(found_.mask.emplace(), *mask, at, 1);
}

bool AttentionReader::AreWhole(const std::vector<IntExpr>& at) {
  for (size_t i = 0; i < at.size(); ++i) {
    if (at[i].is_const(0)) continue;
    if (at[i].kind() != ir::IntKind::kVar || std::count(at.begin(), at.end(), at[i]) > 1) {
      return false;
    }
  }
  return true;
}

// As many heads share keys as may be: that is what makes the load linear.
bool AttentionReader::FindSharing(const Inst& load, const std::vector<IntExpr>& at) {
  if (!found_.heads.is_const()) return SetOperand(found_.key, load, at, 1);
  for (int64_t group = found_.heads.value(); group >= 1; --group) {
    if (found_.heads.value() % group != 0 || !SetOperand(found_.key, load, at, group)) continue;
    found_.of_key = group;
    return true;
  }
  return false;
}

bool AttentionReader::SetOperand(AttentionOperand& operand, const Inst& inst,
                                 const std::vector<IntExpr>& at, int64_t group) {
  const ir::Buffer& buffer = module_.buffers[inst.buffer];
  const IntExpr index = ir::LinearIndex(ints_, buffer, inst.indices);
  IntContext::VarMap zeros;
  for (IntExpr var : at) {
    if (!var.is_const()) zeros[var] = ints_.Const(0);
  }
  operand.buffer = inst.buffer;
  operand.first = ints_.Substitute(index, zeros);
  IntExpr* const strides[] = {&operand.by_batch, &operand.by_head, &operand.by_row,
                              &operand.by_lane};
  IntExpr sum = operand.first;
  for (size_t i = 0; i < at.size(); ++i) {
    *strides[i] = ints_.Const(0);
    const bool is_head = i == 1;
    if (at[i].is_const()) continue;
    // With a single one for all of the heads nothing depends on which it is.
    if (!is_head || at[i].extent() != ints_.Const(group)) {
      IntContext::VarMap one = zeros;
      one[at[i]] = ints_.Const(is_head ? group : 1);
      *strides[i] = ints_.Sub(ints_.Substitute(index, one), operand.first);
    }
    const IntExpr number = is_head ? ints_.FloorDiv(at[i], group) : at[i];
    sum = ints_.Add(sum, ints_.Mul(number, *strides[i]));
  }
  return sum == index;
}

bool AttentionReader::IsAt(const AttentionOperand& operand, const Inst& inst,
                           const std::vector<IntExpr>& at) {
  if (operand.buffer != inst.buffer) return false;
  const IntExpr strides[] = {operand.by_batch, operand.by_head, operand.by_row, operand.by_lane};
  IntExpr index = operand.first;
  for (size_t i = 0; i < at.size(); ++i) index = ints_.Add(index, ints_.Mul(at[i], strides[i]));
  return index == ir::LinearIndex(ints_, module_.buffers[inst.buffer], inst.indices);
}

}  // namespace kiln::schedule::ptx
