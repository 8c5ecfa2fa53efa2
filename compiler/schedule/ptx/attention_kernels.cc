#include "compiler/schedule/ptx/attention_kernels.h"

#include <limits>

#include "compiler/schedule/ptx/attention_reader.h"

namespace kiln::schedule::ptx {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Module;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

class Finder : public AttentionReader {
 public:
  Finder(Module& module, const std::vector<const Kernel*>& kernels)
      : AttentionReader(module, kernels) {}

  std::optional<Attention> Find() {
    if (kernels_.size() != 5 || !FindScores({}) || !FindScaled() || !FindWeights() ||
        !FindResult()) {
      return std::nullopt;
    }
    return found_;
  }

 private:
  // exp(scores - their row's maximum), one over their sum, and its logarithm.
  bool FindWeights() {
    KernelReader r(*kernels_[2]);
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
    KernelReader product(*kernels_[3]);
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

    KernelReader r(*kernels_[4]);
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

  BufferId weights_ = -1, factors_ = -1;
};

}  // namespace

std::optional<Attention> FindAttention(Module& module, const std::vector<const Kernel*>& kernels) {
  return Finder(module, kernels).Find();
}

}  // namespace kiln::schedule::ptx
