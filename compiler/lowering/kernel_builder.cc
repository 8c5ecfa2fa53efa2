#include "compiler/lowering/kernel_builder.h"

#include <cstdint>
#include <utility>

namespace kiln::lowering {

using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;

bool IsFloatNumber(const Number& number) {
  return std::holds_alternative<double>(number);
}

KernelBuilder::KernelBuilder(ir::Module& module, std::string name, std::string origin)
    : module_(module) {
  kernel_.name = std::move(name);
  kernel_.origins.push_back(std::move(origin));
}

Ints KernelBuilder::AddLoops(const Ints& sizes, const std::vector<int>& order,
                             std::vector<IntExpr>& loops) {
  Ints vars = NewVars(ints(), sizes);
  for (size_t i = 0; i < vars.size(); ++i) {
    const IntExpr var = vars[order.empty() ? i : order[i]];
    if (!var.is_const()) loops.push_back(var);
  }
  return vars;
}

Ints KernelBuilder::Outer(const Ints& sizes, const std::vector<int>& order) {
  return AddLoops(sizes, order, kernel_.outer);
}

Ints KernelBuilder::StartPhase(const Ints& sizes) {
  return AddLoops(sizes, {}, kernel_.phases.emplace_back().inner);
}

Scalar KernelBuilder::Emit(Inst inst) {
  if (inst.op != ScalarOp::kStore) inst.result = kernel_.num_values++;
  const Scalar result{inst.result, inst.dtype};
  kernel_.phases.back().body.push_back(std::move(inst));
  return result;
}

Scalar KernelBuilder::Const(DType dtype, double value) {
  Inst inst{ScalarOp::kConst, dtype};
  if (IsFloat(dtype)) {
    inst.immediate_float = value;
  } else {
    inst.immediate_int = dtype == DType::kBool ? value != 0 : static_cast<int64_t>(value);
  }
  return Emit(std::move(inst));
}

Scalar KernelBuilder::ConstInt(DType dtype, int64_t value) {
  if (IsFloat(dtype)) return Const(dtype, static_cast<double>(value));
  Inst inst{ScalarOp::kConst, dtype};
  inst.immediate_int = dtype == DType::kBool ? value != 0 : value;
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Const(DType dtype, const Number& number) {
  if (const auto* b = std::get_if<bool>(&number)) return ConstInt(dtype, *b);
  if (const auto* i = std::get_if<int64_t>(&number)) return ConstInt(dtype, *i);
  if (const auto* f = std::get_if<double>(&number)) return Const(dtype, *f);
  return Cast(Index(std::get<IntExpr>(number)), dtype);
}

Scalar KernelBuilder::Index(IntExpr expr) {
  if (expr.is_const()) return ConstInt(DType::kI64, expr.value());
  Inst inst{ScalarOp::kIndex, DType::kI64};
  inst.indices.push_back(expr);
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Load(const View& view, const Ints& coordinates) {
  Inst inst{ScalarOp::kLoad, view.dtype};
  inst.buffer = view.buffer;
  inst.indices = IndicesAt(ints(), view, coordinates);
  return Emit(std::move(inst));
}

Scalar KernelBuilder::LoadBroadcast(const View& view, const Ints& coordinates) {
  return Load(view, Ints(coordinates.end() - view.sizes.size(), coordinates.end()));
}

Scalar KernelBuilder::LoadMasked(const View& view, const Ints& coordinates, Scalar mask,
                                 double otherwise) {
  if (mask.id == ir::kNoValue) return Load(view, coordinates);
  Inst inst{ScalarOp::kLoad, view.dtype};
  inst.buffer = view.buffer;
  inst.indices = IndicesAt(ints(), view, coordinates);
  inst.has_mask = true;
  inst.operands.push_back(mask.id);
  if (IsFloat(view.dtype)) {
    inst.immediate_float = otherwise;
  } else {
    inst.immediate_int = static_cast<int64_t>(otherwise);
  }
  return Emit(std::move(inst));
}

Scalar KernelBuilder::LoadAt(const View& view, const std::vector<Coordinate>& coordinates) {
  return Emit(AccessAt(ScalarOp::kLoad, view, coordinates));
}

void KernelBuilder::StoreAt(const View& view, const std::vector<Coordinate>& coordinates,
                            Scalar value, std::optional<ir::ReduceKind> kind) {
  Inst inst = AccessAt(ScalarOp::kStore, view, coordinates);
  inst.accumulates = kind.has_value();
  if (kind) inst.reduce_kind = *kind;
  inst.operands.push_back(Cast(value, view.dtype).id);
  Emit(std::move(inst));
}

Inst KernelBuilder::AccessAt(ScalarOp op, const View& view,
                             const std::vector<Coordinate>& coordinates) {
  Inst inst{op, view.dtype};
  inst.buffer = view.buffer;
  Ints exprs;
  for (size_t i = 0; i < coordinates.size(); ++i) {
    const auto* value = std::get_if<Scalar>(&coordinates[i]);
    if (value == nullptr) {
      exprs.push_back(std::get<IntExpr>(coordinates[i]));
      continue;
    }
    exprs.push_back(ints().Indirect(static_cast<int>(inst.operands.size()), view.sizes[i]));
    inst.operands.push_back(Cast(*value, DType::kI64).id);
    inst.checks.push_back(exprs.back());
  }
  inst.indices = IndicesAt(ints(), view, exprs);
  // Dimensions of size 1 and repeated ones do not reach the buffer.
  for (const IntExpr index : inst.indices) {
    ir::ForEachLeaf(index, [&](IntExpr leaf) { std::erase(inst.checks, leaf); });
  }
  return inst;
}

Scalar KernelBuilder::Op(ScalarOp op, Scalar a) {
  Inst inst{op, ir::Info(op).rule == ir::TypeRule::kPredicate ? DType::kBool : a.dtype};
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Op(ScalarOp op, Scalar a, Scalar b) {
  Inst inst{op, ir::Info(op).rule == ir::TypeRule::kCompare ? DType::kBool : a.dtype};
  inst.operands = {a.id, b.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Op(ScalarOp op, Scalar a, double b) {
  return Op(op, a, Const(a.dtype, b));
}

Scalar KernelBuilder::Op(ScalarOp op, Scalar a, Scalar b, Scalar c) {
  Inst inst{op, a.dtype};
  inst.operands = {a.id, b.id, c.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Select(Scalar condition, Scalar a, Scalar b) {
  Inst inst{ScalarOp::kSelect, a.dtype};
  inst.operands = {condition.id, a.id, b.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Cast(Scalar a, DType dtype) {
  if (a.dtype == dtype) return a;
  Inst inst{ScalarOp::kCast, dtype};
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Bitcast(Scalar a, DType dtype) {
  Inst inst{ScalarOp::kBitcast, dtype};
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

void KernelBuilder::AddBounds(IntExpr index, IntExpr low, IntExpr high, Scalar& mask) {
  const auto add = [&](Scalar condition) {
    mask = mask.id == ir::kNoValue ? condition : And(mask, condition);
  };
  if (!ints().ProvablyLessEqual(low, index)) add(Op(ScalarOp::kGe, Index(index), Index(low)));
  if (!ints().ProvablyLess(index, high)) add(Op(ScalarOp::kLt, Index(index), Index(high)));
}

Scalar KernelBuilder::Reduce(ir::ReduceKind kind, Scalar a) {
  const bool is_arg = IsArg(kind);
  if (kernel_.phases.back().inner.empty()) return is_arg ? ConstInt(DType::kI64, 0) : a;
  Inst inst{ScalarOp::kReduce, is_arg ? DType::kI64 : a.dtype};
  inst.reduce_kind = kind;
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Scan(ir::ReduceKind kind, Scalar a) {
  if (kernel_.phases.back().inner.empty()) return a;
  Inst inst{ScalarOp::kScan, a.dtype};
  inst.reduce_kind = kind;
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

Scalar KernelBuilder::Sort(Scalar a, int64_t first) {
  Inst inst{ScalarOp::kSort, DType::kI64};
  inst.immediate_int = first;
  inst.operands = {a.id};
  return Emit(std::move(inst));
}

void KernelBuilder::Store(const View& view, const Ints& coordinates, Scalar value) {
  Inst inst{ScalarOp::kStore, view.dtype};
  inst.buffer = view.buffer;
  inst.indices = IndicesAt(ints(), view, coordinates);
  inst.operands = {Cast(value, view.dtype).id};
  Emit(std::move(inst));
}

void KernelBuilder::Finish(ir::Schedule schedule) {
  // Over one element there is no sum, and so no contraction: a gradient of one sample's one place.
  const bool has_sum = !kernel_.phases.front().inner.empty();
  kernel_.schedule =
      schedule == ir::Schedule::kContraction && !has_sum ? ir::Schedule::kLoops : schedule;
  module_.operations.emplace_back(std::move(kernel_));
}

}  // namespace kiln::lowering
