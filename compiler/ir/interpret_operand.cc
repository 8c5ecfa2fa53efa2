#include "compiler/ir/interpret_operand.h"

#include <algorithm>

namespace kiln::ir {

Side FindSide(const std::vector<Inst>& body, ValueId value) {
  absl::flat_hash_set<ValueId> needed = {value};
  Side side{.value = value};
  for (size_t i = body.size(); i-- > 0;) {
    const Inst& inst = body[i];
    if (!needed.contains(inst.result)) continue;
    side.insts.push_back(&inst);
    needed.insert(inst.operands.begin(), inst.operands.end());
    for (IntExpr index : inst.indices) {
      ForEachLeaf(index, [&](IntExpr leaf) {
        if (leaf.kind() == IntKind::kVar) side.vars.insert(leaf);
      });
    }
  }
  std::reverse(side.insts.begin(), side.insts.end());
  return side;
}

int64_t Axes::Points() const {
  int64_t points = 1;
  for (int64_t e : extents) points = SaturatingMul(points, e);
  return points;
}

std::vector<int64_t> Axes::At(int64_t point) const {
  std::vector<int64_t> at(extents.size());
  for (size_t i = extents.size(); i-- > 0; point /= extents[i]) at[i] = point % extents[i];
  return at;
}

int64_t Axes::Offset(int64_t point, absl::Span<const int64_t> strides_of_vars) const {
  int64_t offset = 0;
  for (size_t i = extents.size(); i-- > 0; point /= extents[i]) {
    offset += point % extents[i] * strides_of_vars[i];
  }
  return offset;
}

Gather::Gather(const Module& module, absl::Span<const int64_t> symbols, const Side& side,
               const Axes& batch, const Axes& rows, const Axes& inner,
               std::vector<Storage>& storage)
    : batch_(batch),
      rows_(rows),
      depth_(inner.Points()),
      strided_(FindStridedLoad(module, symbols, side, batch, rows, inner, storage)),
      program_(Build(module, symbols, side, batch, rows, inner, &reg_)),
      runner_(program_, storage) {
  if (!strided_) return;
  for (int64_t k = 0; k < depth_; ++k) inner_offsets_.push_back(inner.Offset(k, strided_->inner));
}

std::optional<Gather::StridedLoad> Gather::FindStridedLoad(const Module& module,
                                                           absl::Span<const int64_t> symbols,
                                                           const Side& side, const Axes& batch,
                                                           const Axes& rows, const Axes& inner,
                                                           const std::vector<Storage>& storage) {
  const Inst& load = *side.insts.back();
  if (side.insts.size() != 1 || load.op != ScalarOp::kLoad || load.has_mask) return std::nullopt;
  const IntExpr index = LinearIndex(*module.ints, module.buffers[load.buffer], load.indices);
  const auto evaluate = [&](IntExpr e) {  // with each variable at 0
    return module.ints->Evaluate(
        e, [&](IntExpr leaf) { return leaf.kind() == IntKind::kSymbol ? symbols[leaf.id()] : 0; });
  };
  const Storage& buffer = storage[load.buffer];
  StridedLoad strided{buffer.data(), evaluate(index), {}, {}, {}};
  __int128 least = strided.offset, greatest = strided.offset;
  const std::pair<const Axes*, std::vector<int64_t>*> classes[] = {
      {&batch, &strided.batch}, {&rows, &strided.rows}, {&inner, &strided.inner}};
  for (const auto& [axes, strides] : classes) {
    for (size_t i = 0; i < axes->vars.size(); ++i) {
      const IntExpr coefficient = module.ints->CoefficientOf(index, axes->vars[i]);
      if (!coefficient || ContainsKind(coefficient, IntKind::kVar)) return std::nullopt;
      strides->push_back(evaluate(coefficient));
      const __int128 span = static_cast<__int128>(strides->back()) * (axes->extents[i] - 1);
      (span < 0 ? least : greatest) += span;
    }
  }
  // The general way words the error of an access outside the buffer.
  if (least < 0 || greatest >= static_cast<__int128>(buffer.size())) return std::nullopt;
  return strided;
}

KernelProgram Gather::Build(const Module& module, absl::Span<const int64_t> symbols,
                            const Side& side, const Axes& batch, const Axes& rows,
                            const Axes& inner, int* reg) {
  ProgramBuilder builder(module, symbols);
  builder.AddPointLoops(batch.vars);
  std::vector<IntExpr> vars = rows.vars;
  vars.insert(vars.end(), inner.vars.begin(), inner.vars.end());
  builder.BeginNest(vars);
  for (const Inst* inst : side.insts) builder.AddInst(*inst);
  builder.EndNest(false);
  *reg = builder.RegisterOf(side.value);
  return builder.Finish();
}

void Gather::SetBatch(int64_t point) {
  if (strided_) {
    batch_data_ = strided_->data + strided_->offset + batch_.Offset(point, strided_->batch);
    return;
  }
  const std::vector<int64_t> at = batch_.At(point);
  for (size_t i = 0; i < at.size(); ++i) runner_.SetPoint(static_cast<int>(i), at[i]);
  runner_.RunUniform(program_.nests[0]);
}

absl::Status Gather::Rows(int64_t first, int64_t count, double* out) {
  if (!strided_) {
    return runner_.RunRange(program_.nests[0], first * depth_, (first + count) * depth_, reg_, out);
  }
  for (int64_t row = first; row < first + count; ++row) {
    const Lane* data = batch_data_ + rows_.Offset(row, strided_->rows);
    for (int64_t offset : inner_offsets_) *out++ = data[offset].f;
  }
  return absl::OkStatus();
}

}  // namespace kiln::ir
