// Builds the flat program of a kernel.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::ir {
namespace {

StepKind IndexStepKind(IntKind kind) {
  switch (kind) {
    case IntKind::kMul:
      return StepKind::kIntMul;
    case IntKind::kFloorDiv:
      return StepKind::kIntFloorDiv;
    case IntKind::kMod:
      return StepKind::kIntMod;
    case IntKind::kMin:
      return StepKind::kIntMin;
    case IntKind::kMax:
      return StepKind::kIntMax;
    default:
      return StepKind::kIntAdd;
  }
}

}  // namespace

int64_t ProgramBuilder::Evaluate(IntExpr size) const {
  return module_.ints->Evaluate(size, [this](IntExpr leaf) {
    return leaf.kind() == IntKind::kSymbol ? symbols_[leaf.id()] : 0;
  });
}

void ProgramBuilder::AddPointLoops(absl::Span<const IntExpr> vars) {
  for (IntExpr var : vars) {
    point_vars_[var] = static_cast<int>(program_.points.size());
    program_.points.push_back({NewRegister(), std::max<int64_t>(Evaluate(var.extent()), 0)});
  }
}

void ProgramBuilder::BeginNest(absl::Span<const IntExpr> vars) {
  program_.nests.emplace_back();
  indices_.clear();
  lane_vars_.clear();
  for (IntExpr var : vars) {
    lane_vars_[var] = static_cast<int>(nest().vars.size());
    nest().vars.push_back({NewRegister(), std::max<int64_t>(Evaluate(var.extent()), 0)});
    nest().points = SaturatingMul(nest().points, nest().vars.back().extent);
  }
}

void ProgramBuilder::EndNest(bool broadcast_values) {
  if (!broadcast_values) return;
  for (const std::vector<Step>* steps : {&nest().uniform, &nest().steps}) {
    for (const Step& step : *steps) {
      if (step.dst >= 0) nest().broadcast.push_back(step.dst);
    }
  }
}

int ProgramBuilder::ConstantRegister(Lane value) {
  const int reg = NewRegister();
  program_.constants.push_back({reg, value});
  return reg;
}

ProgramBuilder::Operand ProgramBuilder::Index(IntExpr expr, const Inst& inst) {
  // Indirect operands are numbered by instruction, so such expressions are its own.
  if (ContainsKind(expr, IntKind::kIndirect)) return IndexUncached(expr, inst);
  if (auto it = indices_.find(expr); it != indices_.end()) return it->second;
  const Operand operand = IndexUncached(expr, inst);
  indices_[expr] = operand;
  return operand;
}

ProgramBuilder::Operand ProgramBuilder::IndexUncached(IntExpr expr, const Inst& inst) {
  if (!ContainsKind(expr, IntKind::kVar) && !ContainsKind(expr, IntKind::kIndirect)) {
    const int64_t value = Evaluate(expr);
    auto [it, added] = int_constants_.try_emplace(value);
    if (added) it->second = ConstantRegister({.i = value});
    return {it->second, true};
  }
  if (expr.kind() == IntKind::kVar) {
    if (auto it = point_vars_.find(expr); it != point_vars_.end()) {
      program_.points[it->second].used = true;
      return {program_.points[it->second].reg, true};
    }
    LoopVar& var = nest().vars[lane_vars_.at(expr)];
    var.used = true;
    return {var.reg, false};
  }
  if (expr.kind() == IntKind::kIndirect) return {RegisterOf(inst.operands[expr.id()]), false};
  const StepKind kind = IndexStepKind(expr.kind());
  Operand result = Index(expr.operands()[0], inst);
  for (IntExpr operand : expr.operands().subspan(1)) {
    result = Combine(kind, result, Index(operand, inst));
  }
  return result;
}

ProgramBuilder::Operand ProgramBuilder::Combine(StepKind kind, Operand a, Operand b) {
  Step step{.kind = kind, .dst = NewRegister(), .src = {a.reg, b.reg, -1}};
  const bool uniform = a.uniform && b.uniform;
  const int dst = step.dst;
  (uniform ? nest().uniform : nest().steps).push_back(std::move(step));
  return {dst, uniform};
}

Step ProgramBuilder::ScalarStep(const Inst& inst) {
  Step step{.kind = StepKind::kScalar, .op = inst.op, .dtype = inst.dtype};
  for (size_t i = 0; i < inst.operands.size() && i < 3; ++i) {
    const Value& value = values_.at(inst.operands[i]);
    step.src[i] = value.reg;
    if (i == 0) step.operand_dtype = value.dtype;
  }
  return step;
}

void ProgramBuilder::AddAccess(const Inst& inst) {
  const bool is_store = inst.op == ScalarOp::kStore;
  Step step{.kind = is_store ? StepKind::kStore : StepKind::kLoad, .dtype = inst.dtype};
  step.buffer = inst.buffer;
  const auto check = [&](IntExpr leaf) {
    if (leaf.kind() != IntKind::kIndirect) return;
    step.checks.push_back({RegisterOf(inst.operands[leaf.id()]), Evaluate(leaf.extent())});
  };
  for (IntExpr index : inst.indices) ForEachLeaf(index, check);
  for (IntExpr leaf : inst.checks) check(leaf);
  const IntExpr linear = LinearIndex(*module_.ints, module_.buffers[inst.buffer], inst.indices);
  step.src[0] = Index(linear, inst).reg;
  if (is_store) {
    step.src[1] = RegisterOf(inst.operands.back());
    step.accumulates = inst.accumulates;
    step.reduce_kind = inst.reduce_kind;
  } else {
    step.otherwise = ImmediateLane(inst);
    if (inst.has_mask) step.mask = RegisterOf(inst.operands.back());
    step.dst = NewRegister();
    values_[inst.result] = {step.dst, inst.dtype};
  }
  nest().steps.push_back(std::move(step));
}

void ProgramBuilder::AddInst(const Inst& inst) {
  switch (inst.op) {
    case ScalarOp::kConst:
      values_[inst.result] = {ConstantRegister(ImmediateLane(inst)), inst.dtype};
      return;
    case ScalarOp::kIndex:
      values_[inst.result] = {Index(inst.indices[0], inst).reg, inst.dtype};
      return;
    case ScalarOp::kLoad:
    case ScalarOp::kStore:
      return AddAccess(inst);
    case ScalarOp::kReduce:
    case ScalarOp::kScan: {
      Step step = ScalarStep(inst);
      step.kind = inst.op == ScalarOp::kScan ? StepKind::kScan : StepKind::kReduce;
      step.reduce_kind = inst.reduce_kind;
      step.accumulator = static_cast<int>(nest().reductions.size());
      step.dst = NewRegister();
      values_[inst.result] = {step.dst, inst.dtype};
      nest().reductions.push_back(step);
      nest().steps.push_back(std::move(step));
      return;
    }
    default: {
      Step step = ScalarStep(inst);
      step.dst = NewRegister();
      values_[inst.result] = {step.dst, inst.dtype};
      nest().steps.push_back(std::move(step));
      return;
    }
  }
}

void ProgramBuilder::AddInst(const Inst& inst, bool sorted) {
  if (inst.op != ScalarOp::kSort) return AddInst(inst);
  if (sorted && inst.immediate_int > 0) {
    nest().points = std::min(nest().points, inst.immediate_int);
  }
  Step step = ScalarStep(inst);
  step.kind = sorted ? StepKind::kSorted : StepKind::kUnsorted;
  step.dst = NewRegister();
  values_[inst.result] = {step.dst, inst.dtype};
  nest().steps.push_back(std::move(step));
}

void ProgramBuilder::AddResult(ValueId value, DType dtype) {
  Step step{.kind = StepKind::kResult, .dtype = dtype, .dst = NewRegister()};
  values_[value] = {step.dst, dtype};
  nest().steps.push_back(std::move(step));
}

}  // namespace kiln::ir
