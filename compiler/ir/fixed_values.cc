#include "compiler/ir/fixed_values.h"

#include <algorithm>
#include <vector>

namespace kiln::ir {
namespace {

constexpr int kCostly = 4;  // Info(op).cost of a division

bool HasSymbol(IntExpr expr) {
  return ContainsKind(expr, IntKind::kSymbol);
}

bool HasSymbol(const std::vector<IntExpr>& loops) {
  return std::any_of(loops.begin(), loops.end(),
                     [](IntExpr var) { return HasSymbol(var.extent()); });
}

}  // namespace

bool IsFixed(const Buffer& buffer) {
  return buffer.parameter || buffer.kind == BufferKind::kConstant ||
         buffer.kind == BufferKind::kPrepared;
}

bool IsFixed(const Inst& inst, const std::function<bool(BufferId)>& is_fixed) {
  if (inst.op == ScalarOp::kLoad && !is_fixed(inst.buffer)) return false;
  return std::none_of(inst.indices.begin(), inst.indices.end(),
                      [](IntExpr index) { return HasSymbol(index); });
}

bool IsFixed(const Kernel& kernel, const std::function<bool(BufferId)>& is_fixed) {
  std::vector<BufferId> own;
  ForEachInst(kernel, [&](const Inst& inst) {
    if (inst.op == ScalarOp::kStore) own.push_back(inst.buffer);
  });
  const auto is_known = [&](BufferId buffer) {
    return is_fixed(buffer) || std::find(own.begin(), own.end(), buffer) != own.end();
  };
  return !HasSymbol(kernel.outer) &&
         std::all_of(kernel.phases.begin(), kernel.phases.end(), [&](const Phase& phase) {
           return !HasSymbol(phase.inner) &&
                  std::all_of(phase.body.begin(), phase.body.end(),
                              [&](const Inst& inst) { return IsFixed(inst, is_known); });
         });
}

bool StoresPrepared(const Module& module, absl::Span<const Kernel> kernels) {
  bool stores = false;
  for (const Kernel& kernel : kernels) {
    ForEachInst(kernel, [&](const Inst& inst) {
      stores |=
          inst.op == ScalarOp::kStore && module.buffers[inst.buffer].kind == BufferKind::kPrepared;
    });
  }
  return stores;
}

bool IsCostly(const Kernel& kernel) {
  return std::any_of(kernel.phases.begin(), kernel.phases.end(), [](const Phase& phase) {
    return !phase.inner.empty() ||
           std::any_of(phase.body.begin(), phase.body.end(),
                       [](const Inst& inst) { return Info(inst.op).cost >= kCostly; });
  });
}

}  // namespace kiln::ir
