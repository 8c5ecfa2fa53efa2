#include "compiler/schedule/ptx/gradient_kernels.h"

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

class Finder : public AttentionReader {
 public:
  Finder(Module& module, const std::vector<const Kernel*>& kernels)
      : AttentionReader(module, kernels) {}

  std::optional<AttentionGradients> Find() {
    constexpr size_t kKernels = 9;  // and one where weights are rounded for their product
    const bool rounds = kernels_.size() == kKernels + 1;
    if ((kernels_.size() != kKernels && !rounds) || !FindOfKey() || !FindScores(of_key_) ||
        !FindScaled() || found_.mask || !FindWeights() || !FindGradsOfWeights() || !FindSlopes() ||
        !FindOfKeys() || (rounds && !FindRounded()) || !FindOfValues() || !FindOfQueries()) {
      return std::nullopt;
    }
    gradients_.attention = found_;
    return gradients_;
  }

 private:
  const Kernel& Last(size_t back) const { return *kernels_[kernels_.size() - 1 - back]; }

  // How many heads share keys: the sums for keys go over those, too.
  bool FindOfKey() {
    const Kernel& kernel = *kernels_[5];
    if (kernel.phases.empty() || kernel.phases[0].inner.empty()) return false;
    if (kernel.phases[0].inner.size() == 1) return true;
    const IntExpr group = kernel.phases[0].inner[0].extent();
    if (!group.is_const()) return false;
    of_key_ = group.value();
    return true;
  }

  // exp(scores - their row's log sum)
  bool FindWeights() {
    KernelReader r(*kernels_[2]);
    r.Begin(0);
    const Inst& log_sum = r.Take(ScalarOp::kLoad);
    const Inst& score = r.LoadOf(scores_);
    const Inst& centred = r.Take(ScalarOp::kSub, {&score, &log_sum});
    const Inst& weight = r.Take(ScalarOp::kExp, {&centred});
    const Inst& store = r.Take(ScalarOp::kStore, {&weight});
    if (!r.IsRight()) return false;
    weights_ = store.buffer;
    const std::vector<IntExpr>& at = store.indices;
    return at.size() == 4 && AreWhole(at) && score.indices == at &&
           SetOperand(found_.log_sums.emplace(), log_sum, {at[0], at[1], at[2], ints_.Const(0)}, 1);
  }

  // grad value^T
  bool FindGradsOfWeights() {
    KernelReader r(*kernels_[3]);
    const auto [grad, value, store] = ReadProduct(r);
    if (!r.IsRight() || store->indices.size() != 4 || !depth_.extent().is_const()) return false;
    grads_ = store->buffer;
    found_.value_width = depth_.extent().value();
    const std::vector<IntExpr>& at = store->indices;
    return AreWhole(at) && SetOperand(gradients_.grad, *grad, {at[0], at[1], at[2], depth_}, 1) &&
           SetOperand(found_.value, *value, {at[0], at[1], at[3], depth_}, of_key_);
  }

  // weights * (their gradients - the row's dots)
  bool FindSlopes() {
    KernelReader r(*kernels_[4]);
    r.Begin(0);
    const Inst& dot = r.Take(ScalarOp::kLoad);
    const Inst& grad = r.LoadOf(grads_);
    const Inst& centred = r.Take(ScalarOp::kSub, {&grad, &dot});
    const Inst& weight = r.LoadOf(weights_);
    const Inst* slope = &r.Take(ScalarOp::kMul, {&weight, &centred});
    if (r.Peek(ScalarOp::kCast)) slope = &r.Take(ScalarOp::kCast, {slope});
    const Inst& store = r.Take(ScalarOp::kStore, {slope});
    if (!r.IsRight()) return false;
    slopes_ = store.buffer;
    const std::vector<IntExpr>& at = store.indices;
    return at.size() == 4 && AreWhole(at) && grad.indices == at && weight.indices == at &&
           SetOperand(gradients_.dots, dot, {at[0], at[1], at[2], ints_.Const(0)}, 1);
  }

  // Of a product turned(factors) operand: what stores it, where all of it is right. Sums go over
  // queries and, where several share keys, heads.
  const Inst* FindTurned(const Kernel& kernel, BufferId factors, const AttentionOperand& operand) {
    KernelReader r(kernel);
    const auto [factor, row, store] = ReadProduct(r, of_key_ > 1 ? 2 : 1);
    if (!r.IsRight() || store->indices.size() != 4) return nullptr;
    const std::vector<IntExpr>& at = store->indices;
    std::vector<IntExpr> loops = {at[0], at[1], at[2], at[3], depth_};
    IntExpr head = at[1];
    if (of_key_ > 1) {
      loops.push_back(group_);
      head = ints_.Add(ints_.Mul(at[1], of_key_), group_);
    }
    const std::vector<IntExpr>& sizes = module_.buffers[store->buffer].sizes;
    const bool is_right = AreWhole(loops) && depth_.extent() == found_.queries &&
                          ints_.Mul(sizes[1], of_key_) == found_.heads &&
                          factor->buffer == factors &&
                          factor->indices == std::vector{at[0], head, depth_, at[2]} &&
                          IsAt(operand, *row, {at[0], head, depth_, at[3]});
    return is_right ? store : nullptr;
  }

  // scale * slopes^T queries
  bool FindOfKeys() {
    const Inst* sums = FindTurned(*kernels_[5], slopes_, found_.query);
    if (sums == nullptr) return false;
    KernelReader r(*kernels_[6]);
    r.Begin(0);
    const Inst& sum = r.LoadOf(sums->buffer);
    const Inst& scale = r.Take(ScalarOp::kConst);
    const Inst* scaled = &r.Take(ScalarOp::kMul, {&sum, &scale});
    if (r.Peek(ScalarOp::kCast)) scaled = &r.Take(ScalarOp::kCast, {scaled});
    const Inst& store = r.Take(ScalarOp::kStore, {scaled});
    return r.IsRight() && scale.immediate_float == found_.scale && AreWhole(sum.indices) &&
           SetOperand(gradients_.of_keys, store, sum.indices, 1);
  }

  // The weights in 16 bits.
  bool FindRounded() {
    KernelReader r(Last(2));
    r.Begin(0);
    const Inst& weight = r.LoadOf(weights_);
    const Inst& rounded = r.Take(ScalarOp::kCast, {&weight});
    const Inst& store = r.Take(ScalarOp::kStore, {&rounded});
    weights_ = store.buffer;
    return r.IsRight() && AreWhole(store.indices) && weight.indices == store.indices;
  }

  // weights^T grad
  bool FindOfValues() {
    const Inst* store = FindTurned(Last(1), weights_, gradients_.grad);
    return store != nullptr && SetOperand(gradients_.of_values, *store, store->indices, 1);
  }

  // slopes keys
  bool FindOfQueries() {
    KernelReader r(Last(0));
    const auto [slope, key, store] = ReadProduct(r);
    if (!r.IsRight() || store->indices.size() != 4) return false;
    const std::vector<IntExpr>& at = store->indices;
    return AreWhole({at[0], at[1], at[2], at[3], depth_}) && depth_.extent() == found_.keys &&
           slope->buffer == slopes_ && slope->indices == std::vector{at[0], at[1], at[2], depth_} &&
           IsAt(found_.key, *key, {at[0], ints_.FloorDiv(at[1], of_key_), depth_, at[3]}) &&
           SetOperand(gradients_.of_queries, *store, at, 1);
  }

  AttentionGradients gradients_;
  int64_t of_key_ = 1;
  BufferId weights_ = -1, grads_ = -1, slopes_ = -1;
};

}  // namespace

std::optional<AttentionGradients> FindAttentionGradients(
    Module& module, const std::vector<const Kernel*>& kernels) {
  return Finder(module, kernels).Find();
}

}  // namespace kiln::schedule::ptx
