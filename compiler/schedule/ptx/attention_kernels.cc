#include "compiler/schedule/ptx/attention_kernels.h"

#include <limits>

#include "absl/algorithm/container.h"

namespace kiln::schedule::ptx {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::Phase;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Takes a kernel's instructions one after another, as long as they are what is asked for.
class Reader {
 public:
  explicit Reader(const Kernel& kernel) : kernel_(kernel) { is_right_ = !kernel.phases.empty(); }

  // Whether all was as asked for, and nothing is left.
  bool IsRight() const {
    return is_right_ && phase_ + 1 == kernel_.phases.size() &&
           at_ == kernel_.phases[phase_].body.size();
  }

  bool IsRightSoFar() const { return is_right_; }

  // The first phase, or the next after a finished one, has so many loops.
  void Begin(size_t loops) {
    if (has_begun_ && is_right_) {
      is_right_ = at_ == kernel_.phases[phase_].body.size() && ++phase_ < kernel_.phases.size();
    }
    has_begun_ = true;
    at_ = 0;
    is_right_ = is_right_ && kernel_.phases[phase_].inner.size() == loops;
  }
  // The loop of the phase. REQUIRES: Begin(1).
  IntExpr Loop() const { return is_right_ ? kernel_.phases[phase_].inner[0] : IntExpr(); }

  const Inst& Take(ScalarOp op, const std::vector<const Inst*>& operands = {}) {
    static const Inst* const kNothing = new Inst;
    if (!Peek(op)) {
      is_right_ = false;
      return *kNothing;
    }
    const Inst& inst = kernel_.phases[phase_].body[at_++];
    is_right_ = inst.operands.size() == operands.size() && !inst.has_mask && inst.checks.empty() &&
                !inst.accumulates;
    for (size_t i = 0; is_right_ && i < operands.size(); ++i) {
      is_right_ = inst.operands[i] == operands[i]->result;
    }
    return inst;
  }
  bool Peek(ScalarOp op) const {
    return is_right_ && at_ < kernel_.phases[phase_].body.size() &&
           kernel_.phases[phase_].body[at_].op == op;
  }
  // The value as float32, or `value` where it has no conversion.
  const Inst& Widened(const Inst& value) {
    if (!Peek(ScalarOp::kCast)) return value;
    const Inst& wide = Take(ScalarOp::kCast, {&value});
    Check(wide.dtype == DType::kF32);
    return wide;
  }
  const Inst& Constant(double value) {
    const Inst& inst = Take(ScalarOp::kConst);
    Check(inst.dtype == DType::kF32 && inst.immediate_float == value);
    return inst;
  }
  const Inst& Reduce(ReduceKind kind, const Inst& operand) {
    const Inst& inst = Take(ScalarOp::kReduce, {&operand});
    Check(inst.reduce_kind == kind && inst.dtype == DType::kF32);
    return inst;
  }
  const Inst& LoadOf(BufferId buffer) {
    const Inst& inst = Take(ScalarOp::kLoad);
    Check(inst.buffer == buffer);
    return inst;
  }
  void Check(bool is_right) { is_right_ = is_right_ && is_right; }

 private:
  const Kernel& kernel_;
  size_t phase_ = 0, at_ = 0;
  bool has_begun_ = false, is_right_ = false;
};

class Finder {
 public:
  Finder(Module& module, const std::vector<const Kernel*>& kernels)
      : module_(module), ints_(*module.ints), kernels_(kernels) {}

  std::optional<Attention> Find() {
    if (kernels_.size() != 5 || !FindScores() || !FindScaled() || !FindWeights() || !FindResult()) {
      return std::nullopt;
    }
    return found_;
  }

 private:
  // queries keys^T: stores products_.
  bool FindScores() {
    Reader r(*kernels_[0]);
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
    return AreWhole(at) && SetOperand(found_.query, *a, {at[0], at[1], at[2], depth_}, 1) &&
           FindSharing(*b, {at[0], at[1], at[3], depth_});
  }

  // A product's loads and what it stores; sums go over depth_.
  struct Parts {
    const Inst *a, *b, *store;
  };
  Parts ReadProduct(Reader& r) {
    r.Begin(1);
    if (const IntExpr loop = r.Loop()) depth_ = loop;
    const Inst& a = r.Take(ScalarOp::kLoad);
    const Inst& wide_a = r.Widened(a);
    const Inst& b = r.Take(ScalarOp::kLoad);
    const Inst& wide_b = r.Widened(b);
    const Inst& product = r.Take(ScalarOp::kMul, {&wide_a, &wide_b});
    r.Check(product.dtype == DType::kF32);
    const Inst& sum = r.Reduce(ReduceKind::kSum, product);
    r.Begin(0);
    const Inst& store = r.Take(ScalarOp::kStore, {&sum});
    return {&a, &b, &store};
  }

  // Times the scale, with what is forbidden and added: stores scores_.
  bool FindScaled() {
    Reader r(*kernels_[1]);
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

  // exp(scores - their row's maximum), one over their sum, and its logarithm.
  bool FindWeights() {
    Reader r(*kernels_[2]);
    r.Begin(1);
    const Inst& first = r.LoadOf(scores_);
    const IntExpr first_key = r.Loop();
    const Inst* most = &r.Reduce(ReduceKind::kMax, first);
    const Inst* zero = nullptr;
    if (found_.mask) {
      r.Begin(0);
      zero = &r.Constant(0);
      const Inst& none = r.Constant(kNever);
      const Inst& is_none = r.Take(ScalarOp::kEq, {most, &none});
      most = &r.Take(ScalarOp::kSelect, {&is_none, zero, most});
    }
    r.Begin(1);
    const Inst& score = r.LoadOf(scores_);
    const IntExpr key = r.Loop();
    const Inst& centred = r.Take(ScalarOp::kSub, {&score, most});
    const Inst& weight = r.Take(ScalarOp::kExp, {&centred});
    const Inst* stored = &weight;
    if (r.Peek(ScalarOp::kCast)) stored = &r.Take(ScalarOp::kCast, {&weight});
    const Inst& store = r.Take(ScalarOp::kStore, {stored});
    const Inst& sum = r.Reduce(ReduceKind::kSum, weight);
    r.Begin(0);
    const Inst& one = r.Constant(1);
    const Inst* factor = &r.Take(ScalarOp::kDiv, {&one, &sum});
    const Inst& log = r.Take(ScalarOp::kLog, {&sum});
    const Inst* log_sum = &r.Take(ScalarOp::kAdd, {most, &log});
    if (found_.mask) {
      const Inst& is_empty = r.Take(ScalarOp::kEq, {&sum, zero});
      factor = &r.Take(ScalarOp::kSelect, {&is_empty, zero, factor});
      log_sum = &r.Take(ScalarOp::kSelect, {&is_empty, zero, log_sum});
    }
    const Inst& store_factor = r.Take(ScalarOp::kStore, {factor});
    const Inst* store_log = nullptr;
    if (r.Peek(ScalarOp::kStore)) store_log = &r.Take(ScalarOp::kStore, {log_sum});
    if (!r.IsRight() || store_factor.indices.size() != 3) return false;
    weights_ = store.buffer;
    factors_ = store_factor.buffer;
    std::vector<IntExpr> at = store_factor.indices;
    at.push_back(first_key);
    if (!AreWhole(at) || first.indices != at) return false;
    at.back() = key;
    if (score.indices != at || store.indices != at) return false;
    at.back() = ints_.Const(0);
    return store_log == nullptr || SetOperand(found_.log_sums.emplace(), *store_log, at, 1);
  }

  // weights values, times the factors.
  bool FindResult() {
    Reader product(*kernels_[3]);
    const auto [weights, value, sums] = ReadProduct(product);
    if (!product.IsRight() || weights->buffer != weights_ || sums->indices.size() != 4) {
      return false;
    }
    std::vector<IntExpr> at = sums->indices;
    if (!AreWhole(at) || depth_.extent() != found_.keys) return false;
    if (weights->indices != std::vector{at[0], at[1], at[2], depth_}) return false;
    const IntExpr width = module_.buffers[sums->buffer].sizes[3];
    if (!width.is_const()) return false;
    found_.value_width = width.value();
    if (!SetOperand(found_.value, *value, {at[0], at[1], depth_, at[3]}, found_.of_key)) {
      return false;
    }

    Reader r(*kernels_[4]);
    r.Begin(0);
    const Inst& factor = r.LoadOf(factors_);
    const Inst& sum = r.LoadOf(sums->buffer);
    const Inst& scaled = r.Take(ScalarOp::kMul, {&sum, &factor});
    const Inst* result = &scaled;
    if (r.Peek(ScalarOp::kCast)) result = &r.Take(ScalarOp::kCast, {&scaled});
    const Inst& store = r.Take(ScalarOp::kStore, {result});
    if (!r.IsRight()) return false;
    at = sum.indices;
    return AreWhole(at) && factor.indices == std::vector{at[0], at[1], at[2]} &&
           SetOperand(found_.result, store, at, 1);
  }

  // Whether these are the variables of different loops, or 0 where there is one iteration.
  static bool AreWhole(const std::vector<IntExpr>& at) {
    for (size_t i = 0; i < at.size(); ++i) {
      if (at[i].is_const(0)) continue;
      if (at[i].kind() != ir::IntKind::kVar || std::count(at.begin(), at.end(), at[i]) > 1) {
        return false;
      }
    }
    return true;
  }

  // As many heads share keys as may be: that is what makes the load linear.
  bool FindSharing(const Inst& load, const std::vector<IntExpr>& at) {
    if (!found_.heads.is_const()) return SetOperand(found_.key, load, at, 1);
    for (int64_t group = found_.heads.value(); group >= 1; --group) {
      if (found_.heads.value() % group != 0 || !SetOperand(found_.key, load, at, group)) continue;
      found_.of_key = group;
      return true;
    }
    return false;
  }

  // `at`: batch, head, row and lane, of which `group` heads share one.
  bool SetOperand(AttentionOperand& operand, const Inst& inst, const std::vector<IntExpr>& at,
                  int64_t group) {
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

  Module& module_;
  IntContext& ints_;
  const std::vector<const Kernel*>& kernels_;
  Attention found_;
  BufferId products_ = -1, scores_ = -1, weights_ = -1, factors_ = -1;
  IntExpr depth_;
};

}  // namespace

std::optional<Attention> FindAttention(Module& module, const std::vector<const Kernel*>& kernels) {
  return Finder(module, kernels).Find();
}

}  // namespace kiln::schedule::ptx
