#include "compiler/schedule/cpu/answers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace kiln::schedule::cpu {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

absl::flat_hash_map<ValueId, IntExpr> IndexValues(IntContext& ints,
                                                  absl::Span<const NestPhase> phases) {
  absl::flat_hash_map<ValueId, IntExpr> values;
  for (const NestPhase& phase : phases) {
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (inst.op == ScalarOp::kIndex) values[inst.result] = step.index;
      if (inst.op == ScalarOp::kConst && inst.dtype == DType::kI64) {
        values[inst.result] = ints.Const(inst.immediate_int);
      }
    }
  }
  return values;
}

namespace {

class Specializer {
 public:
  Specializer(absl::Span<const NestPhase> phases, Answers known, std::deque<Inst>& insts)
      : phases_(phases), known_(std::move(known)), insts_(insts) {}

  std::vector<std::vector<Step>> Run() {
    std::vector<std::vector<Step>> made;
    for (const NestPhase& phase : phases_) {
      std::vector<Step>& steps = made.emplace_back();
      for (const Step& step : phase.steps) steps.push_back(Replace(step));
    }
    // From the end: a step stays where it stores or something that stays uses it.
    absl::flat_hash_set<ValueId> used;
    for (auto steps = made.rbegin(); steps != made.rend(); ++steps) {
      std::vector<Step> kept;
      for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
        if (step->inst->op != ScalarOp::kStore && !used.contains(step->inst->result)) continue;
        used.insert(step->inst->operands.begin(), step->inst->operands.end());
        kept.push_back(*step);
      }
      std::reverse(kept.begin(), kept.end());
      *steps = std::move(kept);
    }
    return made;
  }

 private:
  ValueId Resolve(ValueId id) const {
    const auto same = same_as_.find(id);
    return same == same_as_.end() ? id : same->second;
  }

  std::optional<bool> Answer(ValueId id) const {
    const auto it = known_.find(id);
    return it == known_.end() ? std::nullopt : std::optional(it->second);
  }

  Step Replace(const Step& step) {
    Inst inst = *step.inst;
    for (ValueId& operand : inst.operands) operand = Resolve(operand);
    Fold(inst);
    if (const auto answer = Answer(inst.result)) return Constant(inst, *answer);
    if (inst.op == ScalarOp::kSelect) {
      if (const auto answer = Answer(inst.operands[0])) {
        same_as_[inst.result] = inst.operands[*answer ? 1 : 2];
      }
    }
    if (inst.op == ScalarOp::kLoad && inst.has_mask) {
      if (const auto answer = Answer(inst.operands.back())) {
        if (!*answer) return Keep({&inst, {}}, ScalarOp::kConst);
        inst.has_mask = false;
        inst.operands.pop_back();
      }
    }
    const bool same = inst.operands == step.inst->operands && inst.checks == step.inst->checks &&
                      inst.has_mask == step.inst->has_mask;
    return same ? step : Keep({&inst, step.index}, inst.op);
  }

  // Logic of answers is an answer, or the other operand.
  void Fold(const Inst& inst) {
    const bool is_and = inst.op == ScalarOp::kAnd;
    if (inst.dtype != DType::kBool) return;
    if (inst.op == ScalarOp::kNot) {
      if (const auto answer = Answer(inst.operands[0])) known_[inst.result] = !*answer;
    }
    if (!is_and && inst.op != ScalarOp::kOr) return;
    for (int i = 0; i < 2; ++i) {
      const auto answer = Answer(inst.operands[i]);
      if (!answer) continue;
      if (*answer != is_and) {
        known_[inst.result] = *answer;
      } else if (const auto other = Answer(inst.operands[1 - i])) {
        known_[inst.result] = *other;
      } else {
        same_as_[inst.result] = inst.operands[1 - i];
      }
      return;
    }
  }

  Step Constant(Inst& inst, bool answer) {
    inst.immediate_int = answer ? 1 : 0;
    return Keep({&inst, {}}, ScalarOp::kConst);
  }

  Step Keep(const Step& step, ScalarOp op) {
    Inst& inst = insts_.emplace_back(*step.inst);
    inst.op = op;
    if (op == ScalarOp::kConst) {
      inst.operands.clear();
      inst.indices.clear();
      inst.buffer = -1;
      inst.has_mask = false;
    }
    return {&inst, step.index};
  }

  absl::Span<const NestPhase> phases_;
  Answers known_;
  std::deque<Inst>& insts_;
  absl::flat_hash_map<ValueId, ValueId> same_as_;
};

}  // namespace

std::vector<std::vector<Step>> WithAnswers(absl::Span<const NestPhase> phases, Answers answers,
                                           std::deque<Inst>& insts) {
  return Specializer(phases, std::move(answers), insts).Run();
}

}  // namespace kiln::schedule::cpu
