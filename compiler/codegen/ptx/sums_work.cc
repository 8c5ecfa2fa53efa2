#include "compiler/codegen/ptx/sums_work.h"

#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"

namespace kiln::codegen::ptx {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;
using schedule::Compute;

// What `wanted` says and all it needs, but for what only `known` needs.
std::vector<const Compute*> StepsFor(const std::vector<const Compute*>& all,
                                     absl::FunctionRef<bool(const Inst&)> wanted, ValueId known) {
  std::vector<const Compute*> steps;
  absl::flat_hash_set<ValueId> needed;
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    const Inst& inst = (*step)->inst;
    if (!wanted(inst) && !(inst.result >= 0 && needed.contains(inst.result))) continue;
    steps.push_back(*step);
    if (inst.result < 0 || inst.result != known) {
      needed.insert(inst.operands.begin(), inst.operands.end());
    }
  }
  absl::c_reverse(steps);
  return steps;
}

class WaitingFinder {
 public:
  WaitingFinder(const std::vector<const Compute*>& steps, IntExpr row, bool is_ragged)
      : steps_(steps), row_(row), is_ragged_(is_ragged) {}

  ValueId Find() {
    constexpr int kMostSteps = 6;
    const ValueId first = FindRounded();
    if (first == ir::kNoValue) return first;
    absl::flat_hash_set<ValueId> before;  // all that it is made of, and itself
    std::vector<ValueId> pending = {first};
    while (!pending.empty()) {
      const ValueId value = pending.back();
      pending.pop_back();
      if (!before.insert(value).second) continue;
      const Compute& step = *by_result_.at(value);
      if (!IsOfColumn(step)) return ir::kNoValue;
      pending.insert(pending.end(), step.inst.operands.begin(), step.inst.operands.end());
    }
    const bool is_needed_more = absl::c_any_of(steps_, [&](const Compute* step) {
      return !before.contains(step->inst.result) &&
             absl::c_any_of(step->inst.operands, [&](ValueId x) {
               return x != first && before.contains(x) && of_sums_.contains(x);
             });
    });
    return is_needed_more || before.size() > kMostSteps ? ir::kNoValue : first;
  }

 private:
  // The first value of 16 bits that sums become.
  ValueId FindRounded() {
    ValueId first = ir::kNoValue;
    for (const Compute* step : steps_) {
      const Inst& inst = step->inst;
      if (inst.result < 0) continue;
      by_result_[inst.result] = step;
      const bool needs_sums = step->alloc >= 0 || absl::c_any_of(inst.operands, [this](ValueId x) {
                                return of_sums_.contains(x);
                              });
      if (!needs_sums) continue;
      of_sums_.insert(inst.result);
      if (first == ir::kNoValue && inst.op == ScalarOp::kCast && IsHalf(inst.dtype)) {
        first = inst.result;
      }
    }
    return first;
  }

  bool IsOfColumn(const Compute& step) const {
    const Inst& inst = step.inst;
    if (step.alloc >= 0) return true;
    if (ir::IsElementary(inst.op) ||
        absl::c_any_of(inst.indices, [this](IntExpr x) { return ContainsVar(x, row_); })) {
      return false;
    }
    return inst.op != ScalarOp::kLoad || (!is_ragged_ && IsPlainLoad(step));
  }

  const std::vector<const Compute*>& steps_;
  const IntExpr row_;
  const bool is_ragged_;
  absl::flat_hash_map<ValueId, const Compute*> by_result_;
  absl::flat_hash_set<ValueId> of_sums_;
};

}  // namespace

std::vector<const Compute*> SumsWork::StepsOfWaiting() const {
  if (waiting == ir::kNoValue) return {};
  return StepsFor(steps, [this](const Inst& inst) { return inst.result == waiting; }, ir::kNoValue);
}

std::vector<const Compute*> SumsWork::StepsOfStores() const {
  return StepsFor(steps, [](const Inst& inst) { return inst.op == ScalarOp::kStore; }, waiting);
}

std::optional<SumsWork> FindSumsWork(const schedule::For& columns, IntExpr row, bool is_ragged) {
  SumsWork work;
  for (const schedule::Node& node : columns.body) {
    const auto* step = std::get_if<Compute>(&node.value);
    if (step == nullptr) return std::nullopt;
    work.steps.push_back(step);
  }
  work.waiting = WaitingFinder(work.steps, row, is_ragged).Find();
  return work;
}

bool IsPlainLoad(const Compute& step) {
  return step.inst.op == ScalarOp::kLoad && step.alloc < 0 && step.inst.operands.empty() &&
         step.inst.checks.empty();
}

}  // namespace kiln::codegen::ptx
