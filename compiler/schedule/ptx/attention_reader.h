// Reads kernels that compiler/lowering/attention.cc makes: what attention and its gradients share.
#pragma once

#include <optional>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/ptx/attention_kernels.h"

namespace kiln::schedule::ptx {

// Takes a kernel's instructions one after another, as long as they are what is asked for.
class KernelReader {
 public:
  explicit KernelReader(const ir::Kernel& kernel) : kernel_(kernel) {
    is_right_ = !kernel.phases.empty();
  }

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
  // The innermost loop of the phase. REQUIRES: Begin(n) with n > 0.
  ir::IntExpr Loop() const {
    return is_right_ ? kernel_.phases[phase_].inner.back() : ir::IntExpr();
  }
  // The loop around it. REQUIRES: Begin(2).
  ir::IntExpr OuterLoop() const {
    return is_right_ ? kernel_.phases[phase_].inner[0] : ir::IntExpr();
  }

  const ir::Inst& Take(ir::ScalarOp op, const std::vector<const ir::Inst*>& operands = {}) {
    static const ir::Inst* const kNothing = new ir::Inst;
    if (!Peek(op)) {
      is_right_ = false;
      return *kNothing;
    }
    const ir::Inst& inst = kernel_.phases[phase_].body[at_++];
    is_right_ = inst.operands.size() == operands.size() && !inst.has_mask && inst.checks.empty() &&
                !inst.accumulates;
    for (size_t i = 0; is_right_ && i < operands.size(); ++i) {
      is_right_ = inst.operands[i] == operands[i]->result;
    }
    return inst;
  }
  bool Peek(ir::ScalarOp op) const {
    return is_right_ && at_ < kernel_.phases[phase_].body.size() &&
           kernel_.phases[phase_].body[at_].op == op;
  }
  // The value as float32, or `value` where it has no conversion.
  const ir::Inst& Widened(const ir::Inst& value) {
    if (!Peek(ir::ScalarOp::kCast)) return value;
    const ir::Inst& wide = Take(ir::ScalarOp::kCast, {&value});
    Check(wide.dtype == DType::kF32);
    return wide;
  }
  const ir::Inst& Constant(double value) {
    const ir::Inst& inst = Take(ir::ScalarOp::kConst);
    Check(inst.dtype == DType::kF32 && inst.immediate_float == value);
    return inst;
  }
  const ir::Inst& Reduce(ir::ReduceKind kind, const ir::Inst& operand) {
    const ir::Inst& inst = Take(ir::ScalarOp::kReduce, {&operand});
    Check(inst.reduce_kind == kind && inst.dtype == DType::kF32);
    return inst;
  }
  const ir::Inst& LoadOf(ir::BufferId buffer) {
    const ir::Inst& inst = Take(ir::ScalarOp::kLoad);
    Check(inst.buffer == buffer);
    return inst;
  }
  void Check(bool is_right) { is_right_ = is_right_ && is_right; }

 private:
  const ir::Kernel& kernel_;
  size_t phase_ = 0, at_ = 0;
  bool has_begun_ = false, is_right_ = false;
};

class AttentionReader {
 protected:
  AttentionReader(ir::Module& module, const std::vector<const ir::Kernel*>& kernels)
      : module_(module), ints_(*module.ints), kernels_(kernels) {}
  ~AttentionReader() = default;

  // A product's loads and what it stores; sums go over depth_ and, where it has two loops, group_.
  struct Parts {
    const ir::Inst *a, *b, *store;
  };
  Parts ReadProduct(KernelReader& r, size_t loops = 1);

  // Of the first kernel, queries keys^T: stores products_. Of heads that share keys there are
  // `of_key`, or as many as may be where that is not said.
  bool FindScores(std::optional<int64_t> of_key);
  // Of the second, times the scale, with what is forbidden and added: stores scores_.
  bool FindScaled();

  // Whether these are the variables of different loops, or 0 where there is one iteration.
  static bool AreWhole(const std::vector<ir::IntExpr>& at);
  // `at`: batch, head, row and lane, of which `group` heads share one.
  bool SetOperand(AttentionOperand& operand, const ir::Inst& inst,
                  const std::vector<ir::IntExpr>& at, int64_t group);
  // Whether `inst` accesses the operand's element `at`, whose head is one of the operand's.
  bool IsAt(const AttentionOperand& operand, const ir::Inst& inst,
            const std::vector<ir::IntExpr>& at);

  ir::Module& module_;
  ir::IntContext& ints_;
  const std::vector<const ir::Kernel*>& kernels_;
  Attention found_;
  ir::BufferId products_ = -1, scores_ = -1;
  ir::IntExpr depth_, group_;

 private:
  bool FindSharing(const ir::Inst& load, const std::vector<ir::IntExpr>& at);
};

}  // namespace kiln::schedule::ptx
