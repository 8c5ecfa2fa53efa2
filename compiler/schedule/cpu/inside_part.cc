#include "compiler/schedule/cpu/inside_part.h"

#include <limits>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace kiln::schedule::cpu {

using ir::Inst;
using ir::ReduceKind;
using ir::ScalarOp;
using ir::ValueId;

namespace {

// The number that the operand of `reduce` is where masked loads read nothing.
std::optional<double> ValueOutside(const NestPhase& phase, const Inst& reduce) {
  absl::flat_hash_map<ValueId, double> values;
  absl::flat_hash_set<ValueId> masks;
  for (const Step& step : phase.steps) {
    const Inst& inst = *step.inst;
    const auto value = [&](size_t i) -> std::optional<double> {
      const auto it = values.find(inst.operands[i]);
      return it == values.end() ? std::nullopt : std::optional(it->second);
    };
    std::optional<double> is;
    if (inst.op == ScalarOp::kLoad && inst.has_mask) {
      masks.insert(inst.operands.back());
      if (IsFloat(inst.dtype)) is = inst.immediate_float;
    } else if (inst.op == ScalarOp::kConst) {
      is = IsFloat(inst.dtype) ? inst.immediate_float : static_cast<double>(inst.immediate_int);
    } else if (inst.op == ScalarOp::kCast && IsFloat(inst.dtype)) {
      is = value(0);
    } else if (inst.op == ScalarOp::kMul && reduce.reduce_kind == ReduceKind::kSum) {
      if (value(0) == 0.0 || value(1) == 0.0) is = 0;
    } else if (masks.size() == 1 && inst.op == ScalarOp::kNe && value(0) && value(1)) {
      is = *value(0) != *value(1) ? 1 : 0;
    } else if (masks.size() == 1 && inst.op == ScalarOp::kSelect) {
      if (value(0) || value(1) == value(2)) is = value(value(0) != 0.0 ? 1 : 2);
    }
    if (is) values[inst.result] = *is;
  }
  const auto it = values.find(reduce.operands[0]);
  return it == values.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace

std::optional<InsidePart> FindInsidePart(const NestPhase& phase, const Inst& reduce) {
  const auto is_masked = [](const Step& step) { return step.inst->has_mask; };
  const ReduceKind kind = reduce.reduce_kind;
  const bool greatest = kind == ReduceKind::kMax || kind == ReduceKind::kArgMax;
  const bool least = kind == ReduceKind::kMin || kind == ReduceKind::kArgMin;
  if (!greatest && !least && kind != ReduceKind::kSum) return std::nullopt;
  if (absl::c_none_of(phase.steps, is_masked)) return InsidePart();
  const std::optional<double> value = ValueOutside(phase, reduce);
  if (!value) return std::nullopt;
  if (kind == ReduceKind::kSum) return *value == 0 ? std::optional(InsidePart()) : std::nullopt;
  const double infinity = std::numeric_limits<double>::infinity();
  const bool is_worst = *value == (greatest ? -infinity : infinity);
  if (!IsArg(kind)) return is_worst ? InsidePart() : InsidePart{value};
  // It counts where all is equally bad, and then the first of all is the result.
  return is_worst ? std::optional(InsidePart{value}) : std::nullopt;
}

}  // namespace kiln::schedule::cpu
