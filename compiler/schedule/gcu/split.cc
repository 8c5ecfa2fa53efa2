#include "compiler/schedule/gcu/split.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace kiln::schedule::gcu {
namespace {

using ir::BufferId;
using ir::Inst;
using ir::IntExpr;
using ir::IntKind;
using ir::Kernel;

bool IsPlain(IntExpr expr) {
  return !ir::ContainsKind(expr, IntKind::kFloorDiv) && !ir::ContainsKind(expr, IntKind::kMod) &&
         !ir::ContainsKind(expr, IntKind::kIndirect);
}

void Find(ir::IntContext& ints, absl::Span<const IntExpr> loops, IntExpr expr,
          std::optional<Split>& found) {
  if (found || IsPlain(expr)) return;
  const IntKind kind = expr.kind();
  if (kind == IntKind::kIndirect) return;
  if (kind == IntKind::kFloorDiv || kind == IntKind::kMod) {
    const IntExpr dividend = expr.operands()[0], divisor = expr.operands()[1];
    const bool is_size = divisor.range().min > 1 && !ir::ContainsKind(divisor, IntKind::kVar) &&
                         !ir::ContainsKind(divisor, IntKind::kIndirect);
    if (is_size && absl::c_linear_search(loops, dividend) && dividend.extent() != divisor &&
        ints.Mod(dividend.extent(), divisor).is_const(0)) {
      found = Split{dividend, divisor};
      return;
    }
  }
  for (IntExpr operand : expr.operands()) Find(ints, loops, operand, found);
}

std::optional<Split> FindAmong(ir::IntContext& ints, absl::Span<const IntExpr> loops,
                               const Kernel& kernel) {
  std::optional<Split> found;
  ir::ForEachInst(kernel, [&](const Inst& inst) {
    for (IntExpr index : inst.indices) Find(ints, loops, index, found);
  });
  return found;
}

class Unflattener {
 public:
  Unflattener(ir::Module& module, const std::vector<bool>& own)
      : module_(module), ints_(*module.ints), own_(own), kernels_(module.buffers.size()) {}

  void Run() {
    for (ir::Operation& operation : module_.operations) {
      auto* kernel = std::get_if<Kernel>(&operation);
      if (kernel == nullptr) continue;
      while (const std::optional<Split> split = FindOuterSplit(ints_, *kernel)) {
        SplitLoop(*split, *kernel);
      }
      ir::ForEachInst(*kernel, [&](const Inst& inst) {
        if (inst.buffer < 0 || absl::c_linear_search(kernels_[inst.buffer], kernel)) return;
        kernels_[inst.buffer].push_back(kernel);
      });
    }
    bool again = !inner_.empty();
    while (again) {
      again = false;
      for (size_t b = 0; b < own_.size(); ++b) {
        if (own_[b]) again = SplitBuffer(static_cast<BufferId>(b)) || again;
      }
    }
  }

 private:
  void SplitLoop(const Split& split, Kernel& kernel) {
    const auto [high, low] = Apply(ints_, split, kernel);
    inner_[low] = high;
  }

  bool SplitBuffer(BufferId id) {
    for (size_t d = 0; d < module_.buffers[id].sizes.size(); ++d) {
      const IntExpr by = Demand(id, d);
      if (!by || !CanSplit(id, d, by)) continue;
      SplitDimension(id, d, by);
      return true;
    }
    return false;
  }

  // The inner half's extent, where some access is at both halves of a loop that was split.
  IntExpr Demand(BufferId id, size_t d) const {
    IntExpr by;
    for (const Kernel* kernel : kernels_[id]) {
      ir::ForEachInst(*kernel, [&](const Inst& inst) {
        if (inst.buffer != id || by) return;
        for (const IntExpr low : kernel->outer) {
          const auto high = inner_.find(low);
          if (high == inner_.end()) continue;
          const IntExpr both = ints_.Add(ints_.Mul(high->second, low.extent()), low);
          if (inst.indices[d] == both) by = low.extent();
        }
      });
    }
    return by;
  }

  bool CanSplit(BufferId id, size_t d, IntExpr by) const {
    const IntExpr size = module_.buffers[id].sizes[d];
    bool can = ints_.Mod(size, by).is_const(0);
    for (const Kernel* kernel : kernels_[id]) {
      ir::ForEachInst(*kernel, [&](const Inst& inst) {
        if (inst.buffer != id || !can) return;
        const IntExpr index = inst.indices[d];
        if (absl::c_linear_search(kernel->outer, index) && index.extent() == size) return;
        can = !inst.has_mask && inst.checks.empty() && IsPlain(index) &&
              IsPlain(ints_.FloorDiv(index, by)) && IsPlain(ints_.Mod(index, by));
      });
    }
    return can;
  }

  void SplitDimension(BufferId id, size_t d, IntExpr by) {
    ir::Buffer& buffer = module_.buffers[id];
    for (Kernel* kernel : kernels_[id]) {
      std::vector<IntExpr> loops;
      ir::ForEachInst(*kernel, [&](const Inst& inst) {
        if (inst.buffer != id || inst.indices[d].kind() != IntKind::kVar) return;
        if (!absl::c_linear_search(loops, inst.indices[d])) loops.push_back(inst.indices[d]);
      });
      for (const IntExpr loop : loops) SplitLoop({loop, by}, *kernel);
      for (ir::Phase& phase : kernel->phases) {
        for (Inst& inst : phase.body) {
          if (inst.buffer != id) continue;
          const IntExpr index = inst.indices[d];
          inst.indices[d] = ints_.FloorDiv(index, by);
          inst.indices.insert(inst.indices.begin() + static_cast<ptrdiff_t>(d) + 1,
                              ints_.Mod(index, by));
        }
      }
    }
    const auto at = static_cast<ptrdiff_t>(d);
    const IntExpr size = buffer.sizes[d], stride = buffer.strides[d];
    buffer.sizes[d] = ints_.FloorDiv(size, by);
    buffer.sizes.insert(buffer.sizes.begin() + at + 1, by);
    buffer.strides[d] = ints_.Mul(stride, by);
    buffer.strides.insert(buffer.strides.begin() + at + 1, stride);
  }

  ir::Module& module_;
  ir::IntContext& ints_;
  const std::vector<bool>& own_;
  std::vector<std::vector<Kernel*>> kernels_;  // by buffer: that access it
  // Of loops that were split: the outer half by the inner one.
  absl::flat_hash_map<IntExpr, IntExpr> inner_;
};

}  // namespace

std::optional<Split> FindSplit(ir::IntContext& ints, const Kernel& kernel) {
  std::vector<IntExpr> loops = kernel.outer;
  for (const ir::Phase& phase : kernel.phases) {
    loops.insert(loops.end(), phase.inner.begin(), phase.inner.end());
  }
  return FindAmong(ints, loops, kernel);
}

std::optional<Split> FindOuterSplit(ir::IntContext& ints, const Kernel& kernel) {
  return FindAmong(ints, kernel.outer, kernel);
}

std::pair<IntExpr, IntExpr> Apply(ir::IntContext& ints, const Split& split, Kernel& kernel) {
  const IntExpr high = ints.NewVar(ints.FloorDiv(split.var.extent(), split.by));
  const IntExpr low = ints.NewVar(split.by);
  const ir::IntContext::VarMap map = {{split.var, ints.Add(ints.Mul(high, split.by), low)}};
  const auto replace = [&](std::vector<IntExpr>& loops) {
    const auto at = absl::c_find(loops, split.var);
    if (at == loops.end()) return;
    *at = high;
    loops.insert(at + 1, low);
  };
  replace(kernel.outer);
  for (ir::Phase& phase : kernel.phases) {
    replace(phase.inner);
    for (Inst& inst : phase.body) {
      for (IntExpr& index : inst.indices) index = ints.Substitute(index, map);
    }
  }
  return {high, low};
}

void Unflatten(ir::Module& module, const std::vector<bool>& own) {
  Unflattener(module, own).Run();
}

}  // namespace kiln::schedule::gcu
