#include "compiler/memory/checked_index.h"

#include "compiler/memory/in_place.h"

namespace kiln::memory {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;

// The load of an input that gives `value`, and the loops around it; null for any other value.
std::optional<CheckedIndex> LoadOf(const ir::Module& module, const Kernel& kernel,
                                   ir::ValueId value) {
  for (const Phase& phase : kernel.phases) {
    for (const Inst& inst : phase.body) {
      if (inst.result != value) continue;
      const bool plain = inst.op == ir::ScalarOp::kLoad && !inst.has_mask && !HasIndirect(inst) &&
                         module.buffers[inst.buffer].kind == ir::BufferKind::kInput;
      if (!plain) return std::nullopt;
      CheckedIndex found{&inst, kernel.outer, {}, {}, {}};
      found.loops.insert(found.loops.end(), phase.inner.begin(), phase.inner.end());
      return found;
    }
  }
  return std::nullopt;
}

// Sets `first`, `dims` and, to those that count, `loops`.
bool Describe(const ir::Module& module, CheckedIndex& index) {
  IntContext& ints = *module.ints;
  const Inst& load = *index.load;
  const IntExpr element = LinearIndex(ints, module.buffers[load.buffer], load.indices);
  std::vector<IntExpr> loops;
  IntContext::VarMap origin;
  for (IntExpr var : index.loops) {
    const IntExpr stride = ints.CoefficientOf(element, var);
    if (!stride || ContainsKind(stride, ir::IntKind::kVar)) return false;
    origin[var] = ints.Const(0);
    if (stride.is_const(0)) continue;
    loops.push_back(var);
    index.dims.emplace_back(stride, var.extent());
  }
  index.loops = std::move(loops);
  index.first = ints.Substitute(element, origin);
  return true;
}

}  // namespace

std::optional<std::vector<std::pair<size_t, CheckedIndex>>> CheckedIndices(const ir::Module& module,
                                                                           const Kernel& kernel,
                                                                           const Inst& inst) {
  std::vector<std::pair<size_t, CheckedIndex>> out;
  for (size_t d = 0; d < inst.indices.size(); ++d) {
    const IntExpr at = inst.indices[d];
    if (!ContainsKind(at, ir::IntKind::kIndirect)) continue;
    if (at.kind() != ir::IntKind::kIndirect) return std::nullopt;
    std::optional<CheckedIndex> index = LoadOf(module, kernel, inst.operands[at.id()]);
    if (!index || !Describe(module, *index)) return std::nullopt;
    index->extent = at.extent();
    out.emplace_back(d, *std::move(index));
  }
  return out;
}

}  // namespace kiln::memory
