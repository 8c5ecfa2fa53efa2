#include "compiler/schedule/ptx/late_sums.h"

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

class Finder {
 public:
  Finder(const Kernel& kernel, size_t first, size_t p) : kernel_(kernel), first_(first), p_(p) {
    absl::flat_hash_set<ir::BufferId> stored;
    ir::ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op == ScalarOp::kStore) stored.insert(inst.buffer);
    });
    definitions_.resize(kernel.num_values);
    for (size_t q = 0; q <= p; ++q) {
      const bool may_be = q == p || kernel.phases[q].inner.empty();
      for (const Inst& inst : kernel.phases[q].body) {
        if (inst.result == ir::kNoValue) continue;
        const bool is_early =
            q < first || (may_be && inst.op != ScalarOp::kReduce &&
                          !(inst.op == ScalarOp::kLoad && stored.contains(inst.buffer)) &&
                          absl::c_all_of(inst.operands, [&](ValueId v) { return IsEarly(v); }));
        definitions_[inst.result] = {q, &inst, is_early};
      }
    }
  }

  std::optional<std::vector<LateSum>> Find() const {
    if (!HasLoopsOfFirst()) return std::nullopt;
    std::vector<LateSum> sums;
    for (const Inst& inst : kernel_.phases[p_].body) {
      if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kScan || inst.op == ScalarOp::kSort) {
        return std::nullopt;
      }
      if (inst.op != ScalarOp::kReduce) continue;
      const std::optional<LateSum> sum = AsLateSum(inst);
      if (!sum) return std::nullopt;
      sums.push_back(*sum);
    }
    return sums;
  }

 private:
  struct Definition {
    size_t phase = 0;
    const Inst* inst = nullptr;
    bool is_early = false;  // can be computed in the loops of the first phase
  };

  bool HasLoopsOfFirst() const {
    const std::vector<IntExpr>&a = kernel_.phases[first_].inner, &b = kernel_.phases[p_].inner;
    return !a.empty() && absl::c_equal(a, b, [](IntExpr x, IntExpr y) {
      return x.extent() == y.extent() && x.extent().range().min >= 1;
    });
  }

  std::optional<LateSum> AsLateSum(const Inst& inst) const {
    if (ir::IsArg(inst.reduce_kind) || inst.dtype != ComputeType(inst.dtype)) return std::nullopt;
    const ValueId operand = inst.operands[0];
    if (IsEarly(operand)) return LateSum{.reduce = &inst};
    if (inst.reduce_kind != ir::ReduceKind::kSum || !IsFloat(inst.dtype)) return std::nullopt;
    LateSum sum{.reduce = &inst, .kind = LateSum::Kind::kDeviation};
    const Inst* deviation = definitions_[operand].inst;
    if (deviation->op == ScalarOp::kMul && deviation->operands[0] == deviation->operands[1]) {
      sum.kind = LateSum::Kind::kSquare;
      deviation = definitions_[deviation->operands[0]].inst;
    }
    if (deviation->op != ScalarOp::kSub) return std::nullopt;
    sum.value = deviation->operands[0];
    sum.from = deviation->operands[1];
    // In no loop: not of the phase itself.
    if (!IsEarly(sum.value) || definitions_[sum.from].phase == p_) return std::nullopt;
    return sum;
  }

  bool IsEarly(ValueId value) const { return definitions_[value].is_early; }

  const Kernel& kernel_;
  const size_t first_, p_;
  std::vector<Definition> definitions_;  // by value
};

}  // namespace

std::optional<std::vector<LateSum>> FindLateSums(const Kernel& kernel, size_t first, size_t p) {
  return Finder(kernel, first, p).Find();
}

}  // namespace kiln::schedule::ptx
