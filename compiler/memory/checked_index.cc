#include "compiler/memory/checked_index.h"

#include <algorithm>

#include "compiler/memory/in_place.h"

namespace kiln::memory {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using Op = CheckedIndex::Op;

// Finds what computes a value.
class Finder {
 public:
  Finder(const ir::Module& module, const Kernel& kernel) : module_(module), kernel_(kernel) {}

  std::optional<CheckedIndex> Find(ir::ValueId value, IntExpr extent) {
    const Phase* phase = nullptr;
    if (Definition(value, phase) == nullptr || !Add(value, *phase)) return std::nullopt;
    const bool loads = std::any_of(index_.ops.begin(), index_.ops.end(),
                                   [](const Op& op) { return op.inst->op == ScalarOp::kLoad; });
    std::vector<IntExpr> loops = kernel_.outer;
    loops.insert(loops.end(), phase->inner.begin(), phase->inner.end());
    if (!loads || !Describe(loops)) return std::nullopt;
    index_.extent = extent;
    return std::move(index_);
  }

 private:
  const Inst* Definition(ir::ValueId value, const Phase*& phase) const {
    for (const Phase& p : kernel_.phases) {
      for (const Inst& inst : p.body) {
        if (inst.result == value) {
          phase = &p;
          return &inst;
        }
      }
    }
    return nullptr;
  }

  // The op that gives the value in an iteration of `phase`; nothing where something else decides.
  std::optional<size_t> Add(ir::ValueId value, const Phase& phase) {
    const auto known = std::find_if(index_.ops.begin(), index_.ops.end(),
                                    [&](const Op& op) { return op.inst->result == value; });
    if (known != index_.ops.end()) return known - index_.ops.begin();
    const Phase* defined_in = nullptr;
    const Inst* inst = Definition(value, defined_in);
    const bool is_here = defined_in == &phase || (inst != nullptr && defined_in->inner.empty());
    if (!is_here || !DependsOnInputs(*inst)) return std::nullopt;
    Op op;
    op.inst = inst;
    for (const ir::ValueId operand : inst->operands) {
      const std::optional<size_t> at = Add(operand, phase);
      if (!at) return std::nullopt;
      op.operands.push_back(*at);
    }
    index_.ops.push_back(std::move(op));
    return index_.ops.size() - 1;
  }

  // Apart from its operands.
  bool DependsOnInputs(const Inst& inst) const {
    switch (inst.op) {
      case ScalarOp::kConst:
      case ScalarOp::kIndex:
        return true;
      case ScalarOp::kLoad: {
        const ir::BufferKind kind = module_.buffers[inst.buffer].kind;
        return !inst.has_mask &&
               (kind == ir::BufferKind::kInput || kind == ir::BufferKind::kConstant);
      }
      case ScalarOp::kStore:
      case ScalarOp::kReduce:
      case ScalarOp::kScan:
      case ScalarOp::kSort:
        return false;
      default:
        return true;
    }
  }

  // Sets the numbers that ops have of `loops`, and which of these count.
  bool Describe(const std::vector<IntExpr>& loops) {
    IntContext& ints = *module_.ints;
    IntContext::VarMap origin;
    for (IntExpr var : loops) origin[var] = ints.Const(0);
    std::vector<IntExpr> numbers;
    for (Op& op : index_.ops) {
      const Inst& inst = *op.inst;
      IntExpr& number = numbers.emplace_back(ints.Const(0));
      if (inst.op == ScalarOp::kIndex) number = inst.indices[0];
      if (inst.op == ScalarOp::kLoad) {
        number = LinearIndex(ints, module_.buffers[inst.buffer], inst.indices);
      }
      op.first = ints.Substitute(number, origin);
    }
    for (IntExpr var : loops) {
      std::vector<IntExpr> strides;
      bool counts = false;
      for (IntExpr number : numbers) {
        const IntExpr stride = ints.CoefficientOf(number, var);
        if (!stride || ContainsKind(stride, ir::IntKind::kVar)) return false;
        counts |= !stride.is_const(0);
        strides.push_back(stride);
      }
      (counts ? index_.loops : index_.others).push_back(var);
      if (!counts) continue;
      for (size_t i = 0; i < strides.size(); ++i) index_.ops[i].strides.push_back(strides[i]);
    }
    return true;
  }

  const ir::Module& module_;
  const Kernel& kernel_;
  CheckedIndex index_;
};

bool SameOp(const Op& a, const Op& b) {
  const Inst &x = *a.inst, &y = *b.inst;
  return x.op == y.op && x.dtype == y.dtype && x.buffer == y.buffer && x.checks == y.checks &&
         x.immediate_int == y.immediate_int && x.immediate_float == y.immediate_float &&
         a.operands == b.operands && a.first == b.first && a.strides == b.strides;
}

}  // namespace

bool CheckedIndex::Same(const CheckedIndex& other) const {
  const auto same_extent = [](IntExpr a, IntExpr b) { return a.extent() == b.extent(); };
  return extent == other.extent &&
         std::equal(loops.begin(), loops.end(), other.loops.begin(), other.loops.end(),
                    same_extent) &&
         std::equal(ops.begin(), ops.end(), other.ops.begin(), other.ops.end(), SameOp);
}

std::optional<std::vector<CheckedIndex>> CheckedIndices(const ir::Module& module,
                                                        const Kernel& kernel, const Inst& inst) {
  if (inst.op == ScalarOp::kNonzero) return std::nullopt;
  std::vector<IntExpr> checked = inst.checks;
  for (IntExpr at : inst.indices) {
    ForEachLeaf(at, [&](IntExpr leaf) {
      if (leaf.kind() == ir::IntKind::kIndirect) checked.push_back(leaf);
    });
  }
  std::vector<CheckedIndex> out;
  for (IntExpr leaf : checked) {
    std::optional<CheckedIndex> index =
        Finder(module, kernel).Find(inst.operands[leaf.id()], leaf.extent());
    if (!index) return std::nullopt;
    out.push_back(*std::move(index));
  }
  return out;
}

}  // namespace kiln::memory
