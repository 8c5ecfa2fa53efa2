#include "compiler/fusion/substitute.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fusion/fusion_graph.h"
#include "compiler/fusion/match_loops.h"

namespace kiln::fusion {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::IntKind;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

namespace {

// The values of the source's loop variables at the element that it stores at `indices`.
std::optional<IntContext::VarMap> VarsAt(ir::Module& module, const InlineSource& source,
                                         const std::vector<IntExpr>& indices) {
  IntContext& ints = *module.ints;
  const std::vector<IntExpr>& sizes = module.buffers[source.store->buffer].sizes;
  IntContext::VarMap map;
  bool is_plain = true;
  for (size_t k = 0; k < sizes.size() && is_plain; ++k) {
    const IntExpr stored = source.store->indices[k];
    if (stored.is_const(0) && sizes[k].is_const(1)) continue;
    is_plain = stored.kind() == IntKind::kVar && stored.extent() == sizes[k] &&
               map.emplace(stored, indices[k]).second;
  }
  if (is_plain && map.size() == source.kernel->outer.size()) return map;
  const auto form = FindLinearForm(ints, sizes, source.store->indices, source.kernel->outer);
  if (!form || !form->UsesAll(source.kernel->outer) || form->total != ints.Product(sizes)) {
    return std::nullopt;
  }
  return SolveForm(ints, *form, Position(ints, sizes, indices));
}

// Whether the load reads every element of its buffer, none of them only where a mask allows it.
bool ReadsAll(ir::Module& module, const Kernel& kernel, const Phase& phase, const Inst& load) {
  if (load.has_mask || kernel.schedule == ir::Schedule::kContraction) return false;
  IntContext& ints = *module.ints;
  std::vector<IntExpr> loops = kernel.outer;
  loops.insert(loops.end(), phase.inner.begin(), phase.inner.end());
  const std::vector<IntExpr>& sizes = module.buffers[load.buffer].sizes;
  const auto form = FindLinearForm(ints, sizes, load.indices, loops);
  return form && form->total == ints.Product(sizes);
}

// Writes the source's body at one load of the consumer.
class BodyCopier {
 public:
  BodyCopier(ir::Module& module, const InlineSource& source, const Inst& load, Kernel& consumer,
             std::vector<Inst>& body)
      : module_(module), source_(source), load_(load), consumer_(consumer), body_(body) {}

  // Returns the value that the load had.
  ValueId Run() {
    std::vector<ValueId> values(source_.kernel->num_values, ir::kNoValue);
    for (const Inst& inst : source_.kernel->phases[0].body) {
      if (inst.op == ScalarOp::kStore) continue;
      Inst copy = inst;
      for (ValueId& operand : copy.operands) operand = values[operand];
      if (inst.op == ScalarOp::kLoad) {
        values[inst.result] = CopyLoad(std::move(copy));
      } else if (inst.op == ScalarOp::kIndex) {
        values[inst.result] = EmitIndex(ints().Substitute(inst.indices[0], Vars(0)));
      } else {
        values[inst.result] = Emit(std::move(copy));
      }
    }
    ValueId result = values[source_.store->operands.back()];
    if (!load_.has_mask) return result;
    Inst otherwise{ScalarOp::kConst, load_.dtype};
    otherwise.immediate_int = load_.immediate_int;
    otherwise.immediate_float = load_.immediate_float;
    const ValueId other = Emit(std::move(otherwise));
    return EmitOp(ScalarOp::kSelect, load_.dtype, {load_.operands.back(), result, other});
  }

 private:
  IntContext& ints() { return *module_.ints; }

  ValueId Emit(Inst inst) {
    inst.result = consumer_.num_values++;
    body_.push_back(std::move(inst));
    return body_.back().result;
  }
  ValueId EmitOp(ScalarOp op, DType dtype, std::vector<ValueId> operands) {
    Inst inst{op, dtype};
    inst.operands = std::move(operands);
    return Emit(std::move(inst));
  }

  // The source's variables, for an instruction whose first `own` operands are its own indirect
  // indices: the load's follow them.
  const IntContext::VarMap& Vars(int own) {
    const auto [it, is_new] = vars_.try_emplace(own);
    if (is_new) {
      std::vector<IntExpr> indices = load_.indices;
      for (IntExpr& index : indices) index = Renumbered(index, own);
      it->second = *VarsAt(module_, source_, indices);
    }
    return it->second;
  }

  IntExpr Renumbered(IntExpr expr, int own) {
    return ints().RemapIndirect(
        expr, [&](IntExpr leaf) { return ints().Indirect(leaf.id() + own, leaf.extent()); });
  }

  // The run-time indices of the load, which the body checks as soon as it reads.
  std::vector<IntExpr> TakeChecks(int own) {
    std::vector<IntExpr> checks;
    const auto add = [&](IntExpr leaf) {
      if (leaf.kind() == IntKind::kIndirect) checks.push_back(Renumbered(leaf, own));
    };
    for (const IntExpr index : load_.indices) ForEachLeaf(index, add);
    for (const IntExpr leaf : load_.checks) add(leaf);
    is_checked_ = true;
    return checks;
  }

  ValueId CopyLoad(Inst copy) {
    const int own = static_cast<int>(NumIndirect(copy));
    const std::vector<IntExpr> sizes = module_.buffers[copy.buffer].sizes;
    std::vector<IntExpr> checks;
    if (!is_checked_ && !copy.has_mask) checks = TakeChecks(own);
    bool uses_indirect = !checks.empty();
    bool is_inside = true;
    for (size_t k = 0; k < copy.indices.size(); ++k) {
      IntExpr& index = copy.indices[k];
      index = ints().Substitute(index, Vars(own));
      ForEachLeaf(index, [&](IntExpr leaf) {
        if (leaf.kind() != IntKind::kIndirect || leaf.id() < own) return;
        uses_indirect = true;
        std::erase(checks, leaf);
      });
      is_inside = is_inside && ints().ProvablyLessEqual(ints().Const(0), index) &&
                  ints().ProvablyLess(index, sizes[k]);
    }
    copy.checks.insert(copy.checks.end(), checks.begin(), checks.end());
    if (uses_indirect) {
      copy.operands.insert(copy.operands.begin() + own, load_.operands.begin(),
                           load_.operands.begin() + NumIndirect(load_));
    }
    // What the load did not read must not be read now, unless that is harmless.
    if (load_.has_mask && (own > 0 || uses_indirect || !is_inside)) {
      const ValueId mask = load_.operands.back();
      if (copy.has_mask) {
        copy.operands.back() = EmitOp(ScalarOp::kAnd, DType::kBool, {copy.operands.back(), mask});
      } else {
        copy.has_mask = true;
        copy.operands.push_back(mask);
      }
    }
    return Emit(std::move(copy));
  }

  // An index as a value; run-time parts make it scalar arithmetic.
  ValueId EmitIndex(IntExpr expr) {
    if (expr.kind() == IntKind::kIndirect) return load_.operands[expr.id()];
    if (!ContainsKind(expr, IntKind::kIndirect)) {
      Inst inst{ScalarOp::kIndex, DType::kI64};
      inst.indices.push_back(expr);
      return Emit(std::move(inst));
    }
    ValueId value = EmitIndex(expr.operands()[0]);
    for (size_t i = 1; i < expr.operands().size(); ++i) {
      value = EmitOp(OpOf(expr.kind()), DType::kI64, {value, EmitIndex(expr.operands()[i])});
    }
    return value;
  }
  static ScalarOp OpOf(IntKind kind) {
    switch (kind) {
      case IntKind::kMul:
        return ScalarOp::kMul;
      case IntKind::kFloorDiv:
        return ScalarOp::kFloorDiv;
      case IntKind::kMod:
        return ScalarOp::kMod;
      case IntKind::kMin:
        return ScalarOp::kMin;
      case IntKind::kMax:
        return ScalarOp::kMax;
      default:
        return ScalarOp::kAdd;
    }
  }

  ir::Module& module_;
  const InlineSource& source_;
  const Inst& load_;  // with its operands as the new body names them
  Kernel& consumer_;
  std::vector<Inst>& body_;
  absl::flat_hash_map<int, IntContext::VarMap> vars_;  // by number of own indirect operands
  bool is_checked_ = false;                            // a copied load checks the load's indices
};

}  // namespace

std::optional<InlineSource> AsInlineSource(ir::Module& module, const Kernel& kernel) {
  if (!IsPointwise(kernel) || kernel.phases.size() != 1) return std::nullopt;
  InlineSource source{.kernel = &kernel};
  for (const Inst& inst : kernel.phases[0].body) {
    if (inst.op != ScalarOp::kStore) continue;
    if (source.store != nullptr) return std::nullopt;
    source.store = &inst;
  }
  if (source.store == nullptr || NumIndirect(*source.store) > 0) return std::nullopt;
  // Whether the store can be solved for its variables does not depend on the load.
  const std::vector<IntExpr> at_zero(source.store->indices.size(), module.ints->Const(0));
  return VarsAt(module, source, at_zero) ? std::optional(source) : std::nullopt;
}

bool KeepsChecks(ir::Module& module, const InlineSource& source, const Kernel& consumer) {
  bool always_loads = false, divides = false;
  for (const Inst& inst : source.kernel->phases[0].body) {
    always_loads |= inst.op == ScalarOp::kLoad && !inst.has_mask;
    divides |= inst.op == ScalarOp::kNonzero;
  }
  for (const Phase& phase : consumer.phases) {
    for (const Inst& inst : phase.body) {
      if (inst.op != ScalarOp::kLoad || inst.buffer != source.store->buffer) continue;
      if (!always_loads && NumIndirect(inst) > 0) return false;
      if (divides && !ReadsAll(module, consumer, phase, inst)) return false;
    }
  }
  return true;
}

void InlineInto(ir::Module& module, const InlineSource& source, Kernel& consumer) {
  std::vector<ValueId> alias;
  const auto current = [&](ValueId id) {
    const size_t at = static_cast<size_t>(id);
    return at < alias.size() && alias[at] != ir::kNoValue ? alias[at] : id;
  };
  for (Phase& phase : consumer.phases) {
    std::vector<Inst> body;
    body.reserve(phase.body.size() + source.kernel->phases[0].body.size());
    for (Inst& inst : phase.body) {
      for (ValueId& operand : inst.operands) operand = current(operand);
      if (inst.op != ScalarOp::kLoad || inst.buffer != source.store->buffer) {
        body.push_back(std::move(inst));
        continue;
      }
      const ValueId value = BodyCopier(module, source, inst, consumer, body).Run();
      alias.resize(consumer.num_values, ir::kNoValue);
      alias[inst.result] = value;
    }
    phase.body = std::move(body);
  }
}

}  // namespace kiln::fusion
