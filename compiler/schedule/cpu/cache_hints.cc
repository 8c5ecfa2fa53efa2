#include "compiler/schedule/cpu/cache_hints.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace kiln::schedule::cpu {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::ScalarOp;

namespace {

constexpr int64_t kRowsAhead = 16;   // of a reduction over columns
constexpr int64_t kFarBytes = 2048;  // a stride that prefetchers of a page do not follow
constexpr int64_t kManyRows = 64;

int64_t HintBytes(IntContext& ints, const ir::Module& module, BufferId buffer) {
  return ints.EvaluateAtHints(SizeBytes(ints, module.buffers[buffer]));
}

bool IsDirectLoad(const Inst& inst) {
  return inst.op == ScalarOp::kLoad && inst.operands.empty();
}

bool IsContiguous(IntContext& ints, const Step& step, const Lanes& lanes) {
  if (!lanes.var) return false;
  const IntExpr stride = LaneStride(ints, step.index, lanes.var, lanes.width);
  return stride && stride.is_const(1);
}

// `index` with `var` moved on by `steps`.
IntExpr Ahead(IntContext& ints, IntExpr index, IntExpr var, int64_t steps) {
  return ints.Substitute(index, {{var, ints.Add(var, ints.Const(steps))}});
}

using Prefetches = absl::flat_hash_map<const Inst*, IntExpr>;

// The next row of what an earlier phase read first and this one reads again.
Prefetches NextRows(IntContext& ints, const ir::Module& module, const Nest& nest,
                    const VectorPlan& plan, const DeviceInfo& device) {
  Prefetches prefetches;
  if (nest.outer.empty()) return prefetches;
  const IntExpr row = nest.outer.back();
  absl::flat_hash_set<BufferId> read_before, planned;
  int64_t bytes = 0;  // of a row of all
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    const NestPhase& phase = nest.phases[i];
    int64_t points = 1;
    for (IntExpr var : phase.inner) points *= ExtentHint(ints, var);
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (!IsDirectLoad(inst) || !read_before.contains(inst.buffer)) continue;
      if (!ContainsVar(step.index, row) || !IsContiguous(ints, step, plan.phase_lanes[i])) continue;
      if (HintBytes(ints, module, inst.buffer) < device.l2_bytes) continue;
      const int64_t more = points * DTypeSize(inst.dtype);
      if (bytes + more > device.l2_bytes / 4 || !planned.insert(inst.buffer).second) continue;
      bytes += more;
      prefetches[&inst] = Ahead(ints, step.index, row, 1);
    }
    for (const Step& step : phase.steps) {
      if (IsDirectLoad(*step.inst)) read_before.insert(step.inst->buffer);
    }
  }
  return prefetches;
}

// Rows of narrow elements that are read one after another, where the next is not fetched anyway.
void AddNarrowRows(IntContext& ints, const ir::Module& module, const Nest& nest,
                   const VectorPlan& plan, const DeviceInfo& device, Prefetches& prefetches) {
  if (nest.outer.empty()) return;
  const IntExpr row = nest.outer.back();
  absl::flat_hash_set<BufferId> read_before;
  for (const auto& [inst, index] : prefetches) read_before.insert(inst->buffer);
  for (size_t i = 0; i < nest.phases.size(); ++i) {
    for (const Step& step : nest.phases[i].steps) {
      const Inst& inst = *step.inst;
      if (!IsDirectLoad(inst) || !read_before.insert(inst.buffer).second) continue;
      const int64_t size = DTypeSize(inst.dtype);
      if (size >= 4 || !ContainsVar(step.index, row)) continue;
      if (!IsContiguous(ints, step, plan.phase_lanes[i])) continue;
      if (HintBytes(ints, module, inst.buffer) < device.l2_bytes) continue;
      prefetches.try_emplace(&inst, ints.Add(step.index, kBytesAhead / size));
    }
  }
}

Prefetches RowsOfColumns(IntContext& ints, const ir::Module& module, const Nest& nest,
                         const VectorPlan& plan, const DeviceInfo& device) {
  Prefetches prefetches;
  for (const NestPhase& phase : nest.phases) {
    if (phase.inner.empty() || ExtentHint(ints, phase.inner.back()) < kManyRows) continue;
    const IntExpr row = phase.inner.back();
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (!IsDirectLoad(inst) || !IsContiguous(ints, step, plan.lanes)) continue;
      const IntExpr stride = ints.CoefficientOf(step.index, row);
      if (!stride || HintBytes(ints, module, inst.buffer) < device.l2_bytes) continue;
      const int64_t stride_bytes = ints.EvaluateAtHints(stride) * DTypeSize(inst.dtype);
      if (std::abs(stride_bytes) < kFarBytes) continue;
      prefetches[&inst] = Ahead(ints, step.index, row, kRowsAhead);
    }
  }
  return prefetches;
}

}  // namespace

absl::flat_hash_set<BufferId> StreamedBuffers(IntContext& ints, const ir::Module& module,
                                              const Nest& nest, const DeviceInfo& device) {
  if (nest.tile != nullptr) return {};  // tiles are small
  absl::flat_hash_set<BufferId> read, written;
  absl::flat_hash_map<BufferId, int64_t> bytes;
  int64_t rows = 1;
  for (IntExpr var : nest.outer) rows *= ExtentHint(ints, var);
  for (const NestPhase& phase : nest.phases) {
    int64_t points = rows;
    for (IntExpr var : phase.inner) points *= ExtentHint(ints, var);
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (inst.op != ScalarOp::kLoad && inst.op != ScalarOp::kStore) continue;
      const bool is_first = inst.op == ScalarOp::kStore && written.insert(inst.buffer).second;
      if (!is_first || ir::IsScatter(inst)) read.insert(inst.buffer);
      bytes[inst.buffer] =
          std::min(HintBytes(ints, module, inst.buffer), points * DTypeSize(inst.dtype));
    }
  }
  int64_t sum = 0;
  for (const auto& [buffer, size] : bytes) sum += size;
  if (sum < device.l3_bytes / 4 * 3) return {};
  absl::erase_if(written, [&](BufferId buffer) { return read.contains(buffer); });
  return written;
}

absl::flat_hash_map<const Inst*, IntExpr> PlanPrefetches(IntContext& ints, const ir::Module& module,
                                                         const Nest& nest, const VectorPlan& plan,
                                                         const DeviceInfo& device) {
  if (plan.row_var || nest.tile != nullptr) return {};  // a tile fetches its own lines
  if (plan.outer) return RowsOfColumns(ints, module, nest, plan, device);
  Prefetches prefetches = NextRows(ints, module, nest, plan, device);
  AddNarrowRows(ints, module, nest, plan, device, prefetches);
  return prefetches;
}

}  // namespace kiln::schedule::cpu
