#include "compiler/fusion/simplify_kernel.h"

#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kiln::fusion {

using ir::Inst;
using ir::IntExpr;
using ir::Kernel;
using ir::kNoValue;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

namespace {

// An instruction without its result: equal ones have equal values.
struct InstKey {
  Inst inst;

  friend bool operator==(const InstKey& a, const InstKey& b) { return DoesSame(a.inst, b.inst); }
  template <typename H>
  friend H AbslHashValue(H h, const InstKey& key) {
    const Inst& x = key.inst;
    return H::combine(std::move(h), x.op, x.dtype, x.operands, x.buffer, x.indices, x.checks,
                      x.has_mask, x.reduce_kind, x.immediate_int,
                      std::bit_cast<uint64_t>(x.immediate_float));
  }
};
using ValueTable = absl::flat_hash_map<InstKey, ValueId>;

class Simplifier {
 public:
  explicit Simplifier(Kernel& kernel)
      : kernel_(kernel), alias_(kernel.num_values, kNoValue), definition_(kernel.num_values) {}

  void Run() {
    for (size_t p = 0; p < kernel_.phases.size(); ++p) ShareValues(p);
    RemoveUnused();
    Renumber();
  }

 private:
  // The product and the sum of a contraction must stay what they are.
  bool IsFixed(size_t phase, size_t at) const {
    return kernel_.schedule == ir::Schedule::kContraction && phase == 0 &&
           at + 2 >= kernel_.phases[0].body.size();
  }

  void ShareValues(size_t p) {
    Phase& phase = kernel_.phases[p];
    ValueTable local;
    ValueTable& table = phase.inner.empty() ? global_ : local;
    std::vector<Inst> body;
    body.reserve(phase.body.size());
    for (size_t i = 0; i < phase.body.size(); ++i) {
      Inst inst = std::move(phase.body[i]);
      for (ValueId& operand : inst.operands) {
        if (alias_[operand] != kNoValue) operand = alias_[operand];
      }
      if (inst.result == kNoValue) {
        body.push_back(std::move(inst));
        continue;
      }
      const bool fixed = IsFixed(p, i);
      if (!fixed) {
        if (const ValueId same = Fold(inst); same != kNoValue) {
          alias_[inst.result] = same;
          continue;
        }
        const ValueId result = std::exchange(inst.result, kNoValue);
        InstKey key{inst};
        inst.result = result;
        const auto outside = global_.find(key);
        // A reduction is visible in later phases only, and no two phases share one.
        if (outside != global_.end() && inst.op != ScalarOp::kReduce) {
          alias_[result] = outside->second;
          continue;
        }
        const auto [it, is_new] = table.try_emplace(std::move(key), result);
        if (!is_new) {
          alias_[result] = it->second;
          continue;
        }
      }
      definition_[inst.result] = inst;
      body.push_back(std::move(inst));
    }
    phase.body = std::move(body);
  }

  bool IsConst(ValueId id, double value) const {
    const Inst& inst = definition_[id];
    if (inst.op != ScalarOp::kConst || inst.result != id) return false;
    if (!IsFloat(inst.dtype)) return static_cast<double>(inst.immediate_int) == value;
    return inst.immediate_float == value;
  }
  bool IsIntegerZero(ValueId id) const {
    return IsIntegral(definition_[id].dtype) && IsConst(id, 0);
  }

  // The value that `inst` equals, or kNoValue; may rewrite it to something simpler.
  ValueId Fold(Inst& inst) const {
    const std::vector<ValueId>& v = inst.operands;
    switch (inst.op) {
      case ScalarOp::kIndex:
        if (inst.indices[0].is_const()) {
          inst.immediate_int = inst.indices[0].value();
          inst.op = ScalarOp::kConst;
          inst.indices.clear();
        }
        return kNoValue;
      case ScalarOp::kAdd:
        if (IsIntegerZero(v[1])) return v[0];
        return IsIntegerZero(v[0]) ? v[1] : kNoValue;
      case ScalarOp::kSub:
        // x - 0 is exact for floats, too, unlike -0 + 0.
        return IsPositiveZero(v[1]) ? v[0] : kNoValue;
      case ScalarOp::kMul:
        if (IsConst(v[1], 1)) return v[0];
        return IsConst(v[0], 1) ? v[1] : kNoValue;
      case ScalarOp::kDiv:
        return IsConst(v[1], 1) ? v[0] : kNoValue;
      case ScalarOp::kNonzero: {
        const Inst& divisor = definition_[v[0]];
        const bool known = divisor.op == ScalarOp::kConst && divisor.immediate_int != 0;
        return known || divisor.op == ScalarOp::kNonzero ? v[0] : kNoValue;
      }
      case ScalarOp::kCast:
      case ScalarOp::kBitcast:
        return definition_[v[0]].dtype == inst.dtype ? v[0] : kNoValue;
      case ScalarOp::kSelect:
        if (v[1] == v[2] || IsConst(v[0], 1)) return v[1];
        return IsConst(v[0], 0) ? v[2] : kNoValue;
      case ScalarOp::kAnd:
        if (v[0] == v[1]) return v[0];
        if (inst.dtype != DType::kBool) return kNoValue;
        if (IsConst(v[1], 1)) return v[0];
        return IsConst(v[0], 1) ? v[1] : kNoValue;
      default:
        return kNoValue;
    }
  }
  bool IsPositiveZero(ValueId id) const {
    return IsConst(id, 0) && !std::signbit(definition_[id].immediate_float);
  }

  void RemoveUnused() {
    std::vector<bool> used(kernel_.num_values, false);
    for (size_t p = kernel_.phases.size(); p-- > 0;) {
      std::vector<Inst>& body = kernel_.phases[p].body;
      std::vector<bool> keep(body.size());
      for (size_t i = body.size(); i-- > 0;) {
        keep[i] = body[i].result == kNoValue || used[body[i].result] || IsFixed(p, i);
        if (!keep[i]) continue;
        for (ValueId operand : body[i].operands) used[operand] = true;
      }
      size_t kept = 0;
      for (size_t i = 0; i < body.size(); ++i) {
        if (!keep[i]) continue;
        if (kept != i) body[kept] = std::move(body[i]);
        ++kept;
      }
      body.resize(kept);
    }
    std::erase_if(kernel_.phases, [](const Phase& phase) { return phase.body.empty(); });
  }

  void Renumber() {
    std::vector<ValueId> number(kernel_.num_values, kNoValue);
    ValueId next = 0;
    for (Phase& phase : kernel_.phases) {
      for (Inst& inst : phase.body) {
        for (ValueId& operand : inst.operands) operand = number[operand];
        if (inst.result != kNoValue) inst.result = number[inst.result] = next++;
      }
    }
    kernel_.num_values = next;
  }

  Kernel& kernel_;
  std::vector<ValueId> alias_;    // by value: the one that stands for it
  std::vector<Inst> definition_;  // by value
  ValueTable global_;             // values of phases without inner loops
};

}  // namespace

void SimplifyKernel(Kernel& kernel) {
  Simplifier(kernel).Run();
}

}  // namespace kiln::fusion
