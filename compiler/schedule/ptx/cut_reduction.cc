#include "compiler/schedule/ptx/cut_reduction.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/ptx/late_sums.h"

namespace kiln::schedule::ptx {
namespace {

using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ScalarOp;
using ir::ValueId;

// Instructions that are added to a phase, equal ones once.
class Body {
 public:
  Body(Kernel& kernel, size_t phase) : kernel_(kernel), phase_(phase) {}

  ValueId Add(Inst inst) {
    std::vector<Inst>& body = kernel_.phases[phase_].body;
    const auto same = absl::c_find_if(body, [&](const Inst& other) {
      return other.result != ir::kNoValue && ir::DoesSame(other, inst);
    });
    if (same != body.end()) return same->result;
    inst.result = kernel_.num_values++;
    body.push_back(std::move(inst));
    return body.back().result;
  }
  ValueId Operation(ScalarOp op, DType dtype, std::vector<ValueId> operands) {
    Inst inst;
    inst.op = op;
    inst.dtype = dtype;
    inst.operands = std::move(operands);
    return Add(std::move(inst));
  }
  ValueId Constant(DType dtype, double value) {
    Inst inst;
    inst.op = ScalarOp::kConst;
    inst.dtype = dtype;
    inst.immediate_float = value;
    return Add(std::move(inst));
  }
  ValueId Index(IntExpr e) {
    Inst inst;
    inst.op = ScalarOp::kIndex;
    inst.dtype = DType::kI64;
    inst.indices = {e};
    return Add(std::move(inst));
  }
  ValueId Load(DType dtype, ir::BufferId buffer, std::vector<IntExpr> indices) {
    Inst inst;
    inst.op = ScalarOp::kLoad;
    inst.dtype = dtype;
    inst.buffer = buffer;
    inst.indices = std::move(indices);
    return Add(std::move(inst));
  }
  // What has no result, or an old one.
  void Append(Inst inst) { kernel_.phases[phase_].body.push_back(std::move(inst)); }

 private:
  Kernel& kernel_;
  const size_t phase_;
};

class Cutter {
 public:
  Cutter(ir::Module& module, const CutPlan& plan, Kernel& kernel)
      : module_(module), ints_(*module.ints), plan_(plan), kernel_(kernel) {}

  Kernel Run() {
    parts_.name = absl::StrCat(kernel_.name, "_parts");
    parts_.origins = kernel_.origins;
    parts_.phases.resize(3);
    MakeLoops();
    definitions_.resize(kernel_.num_values);
    ir::ForEachInst(kernel_, [&](const Inst& inst) {
      if (inst.result != ir::kNoValue) definitions_[inst.result] = &inst;
    });
    // Both kernels change together, so that all of the old one is there to copy from.
    std::vector<std::pair<size_t, Phase>> merged;
    for (size_t p = 0; p < kernel_.phases.size(); ++p) {
      if (!kernel_.phases[p].inner.empty()) merged.emplace_back(p, CutPhase(p));
    }
    for (auto& [p, phase] : merged) kernel_.phases[p] = std::move(phase);
    std::erase_if(parts_.phases, [](const Phase& phase) { return phase.body.empty(); });
    return std::move(parts_);
  }

 private:
  // Where the copies of a phase's instructions stand.
  struct Place {
    IntContext::VarMap vars;  // of the kernel's loops: what they are there
    bool is_masked = false;   // some iterations are past the end
    absl::flat_hash_map<ValueId, ValueId> copies;
  };
  // What is kept of a part of what LateSums of a `value` are about.
  struct Deviations {
    ValueId value = ir::kNoValue;           // in the kernel of parts
    ValueId center = ir::kNoValue;          // K
    ir::BufferId centers = -1, means = -1;  // K and D
    ir::BufferId squares = -1;              // M2, where one sums squares
  };

  // The loops of parts_: those of the parts, those of the kernel, and the rest of the cut ones.
  void MakeLoops() {
    for (IntExpr var : plan_.whole) {
      parts_.outer.push_back(vars_[var] = ints_.NewVar(var.extent()));
    }
    if (plan_.loop) {
      extent_ = Extent(ints_, plan_.loop);
      length_ = ints_.CeilDiv(extent_, ints_.Const(plan_.pieces));
      is_exact_ = extent_.is_const() && extent_.value() % plan_.pieces == 0;
      parts_.outer.push_back(part_ = ints_.NewVar(ints_.Const(plan_.pieces)));
    }
    num_part_loops_ = parts_.outer.size();
    for (IntExpr var : kernel_.outer) {
      parts_.outer.push_back(vars_[var] = ints_.NewVar(var.extent()));
    }
    center_vars_ = vars_;
    for (IntExpr var : kernel_.phases[0].inner) {
      if (vars_.contains(var)) continue;
      const bool is_cut = var == plan_.loop;
      const IntExpr mine = ints_.NewVar(is_cut ? length_ : var.extent());
      parts_.phases[kLoops].inner.push_back(mine);
      vars_[var] = is_cut ? place_ = ints_.Add(ints_.Mul(part_, length_), mine) : mine;
    }
  }

  // What the kernel's phase becomes.
  Phase CutPhase(size_t p) {
    const Phase& from = kernel_.phases[p];
    Place place{.vars = vars_, .is_masked = plan_.loop && !is_exact_};
    for (size_t i = 0; i < from.inner.size(); ++i) {
      place.vars[from.inner[i]] = vars_.at(kernel_.phases[0].inner[i]);
    }
    // Loops over the parts, in a kernel of their own while it grows.
    Kernel scratch{.phases = {{}}, .num_values = kernel_.num_values};
    for (size_t i = 0; i < num_part_loops_; ++i) {
      scratch.phases[0].inner.push_back(ints_.NewVar(parts_.outer[i].extent()));
    }
    at_ = scratch.phases[0].inner;
    phase_ = &from;
    Body merge(scratch, 0);
    const std::vector<LateSum> sums = SumsOf(p);
    if (p == 0) CopyAll(from, place);
    for (const LateSum& sum : sums) {
      Inst reduce = *sum.reduce;
      reduce.operands = {sum.kind == LateSum::Kind::kFree ? LoadPart(sum, place, merge)
                                                          : LoadMoment(sum, place, merge)};
      merge.Append(std::move(reduce));
    }
    kernel_.num_values = scratch.num_values;
    return std::move(scratch.phases[0]);
  }

  std::vector<LateSum> SumsOf(size_t p) const {
    if (p > 0) return *FindLateSums(kernel_, 0, p);
    std::vector<LateSum> sums;
    for (const Inst& inst : kernel_.phases[0].body) {
      if (inst.op == ScalarOp::kReduce) sums.push_back({.reduce = &inst});
    }
    return sums;
  }

  // Of the first phase even what is not for its reductions.
  void CopyAll(const Phase& from, Place& place) {
    Body body(parts_, kLoops);
    for (const Inst& inst : from.body) {
      if (inst.op == ScalarOp::kStore) {
        body.Append(Copied(inst, place, body));
      } else if (inst.op != ScalarOp::kReduce) {
        Copy(inst.result, place, body);
      }
    }
  }

  // The value in the kernel of parts.
  ValueId Copy(ValueId value, Place& place, Body& body) {
    if (const auto found = place.copies.find(value); found != place.copies.end()) {
      return found->second;
    }
    const ValueId copy = body.Add(Copied(*definitions_[value], place, body));
    place.copies[value] = copy;
    return copy;
  }

  // The instruction there; nothing is read past the end.
  Inst Copied(Inst inst, Place& place, Body& body) {
    for (ValueId& operand : inst.operands) operand = Copy(operand, place, body);
    for (IntExpr& e : inst.indices) e = ints_.Substitute(e, place.vars);
    for (IntExpr& e : inst.checks) e = ints_.Substitute(e, place.vars);
    if (!place.is_masked || inst.op != ScalarOp::kLoad) return inst;
    if (inst.has_mask) {
      inst.operands.back() =
          body.Operation(ScalarOp::kAnd, DType::kBool, {inst.operands.back(), Inside(body)});
    } else {
      inst.operands.push_back(Inside(body));
      inst.has_mask = true;
    }
    return inst;
  }

  ValueId Inside(Body& body) {
    return body.Operation(ScalarOp::kLt, DType::kBool, {body.Index(place_), body.Index(extent_)});
  }

  // Reduces in the loops of parts_, where what is past the end changes nothing.
  ValueId Reduce(ir::ReduceKind kind, DType dtype, ValueId operand, bool is_masked) {
    Body body(parts_, kLoops);
    if (is_masked) {
      Inst identity;
      identity.op = ScalarOp::kConst;
      identity.dtype = dtype;
      ir::SetIdentity(kind, identity);
      const ValueId other = body.Add(std::move(identity));
      operand = body.Operation(ScalarOp::kSelect, dtype, {Inside(body), operand, other});
    }
    Inst reduce;
    reduce.op = ScalarOp::kReduce;
    reduce.dtype = dtype;
    reduce.reduce_kind = kind;
    reduce.operands = {operand};
    return body.Add(std::move(reduce));
  }

  // Of a sum that is as good in the first loops.
  ValueId LoadPart(const LateSum& sum, Place& place, Body& merge) {
    Body body(parts_, kLoops);
    const DType dtype = sum.reduce->dtype;
    const ValueId part = Reduce(sum.reduce->reduce_kind, dtype,
                                Copy(sum.reduce->operands[0], place, body), place.is_masked);
    return LoadStored(StoreOf(part, dtype), dtype, merge);
  }

  // Of a sum of deviations: as late_sums.h says.
  ValueId LoadMoment(const LateSum& sum, Place& place, Body& merge) {
    const DType dtype = sum.reduce->dtype;
    const Deviations& kept = DeviationsOf(sum, place);
    const ValueId center = LoadStored(kept.centers, dtype, merge);
    const ValueId mean = LoadStored(kept.means, dtype, merge);
    const ValueId from = merge.Operation(ScalarOp::kSub, dtype, {center, sum.from});
    const ValueId away = merge.Operation(ScalarOp::kAdd, dtype, {from, mean});
    const ValueId all =
        merge.Operation(ScalarOp::kMul, dtype, {NumElements(at_.back(), 0, dtype, merge), away});
    if (sum.kind == LateSum::Kind::kDeviation) return all;
    return merge.Operation(ScalarOp::kAdd, dtype,
                           {LoadStored(kept.squares, dtype, merge),
                            merge.Operation(ScalarOp::kMul, dtype, {all, away})});
  }

  const Deviations& DeviationsOf(const LateSum& sum, Place& place) {
    Body body(parts_, kLoops), last(parts_, kStores);
    const DType dtype = sum.reduce->dtype;
    const auto operation = [&](Body& to, ScalarOp op, ValueId a, ValueId b) {
      return to.Operation(op, dtype, {a, b});
    };
    const ValueId value = Copy(sum.value, place, body);
    auto kept = absl::c_find_if(deviations_, [&](const Deviations& d) { return d.value == value; });
    if (kept == deviations_.end()) {
      deviations_.push_back({.value = value, .center = AddCenter(sum.value, dtype)});
      kept = deviations_.end() - 1;
    }
    const ValueId deviation = operation(body, ScalarOp::kSub, value, kept->center);
    const ValueId total = Reduce(ir::ReduceKind::kSum, dtype, deviation, place.is_masked);
    const ValueId elements = NumElements(part_, 1, dtype, last);
    const ValueId mean = operation(last, ScalarOp::kDiv, total, elements);
    if (kept->centers < 0) {
      kept->centers = StoreOf(kept->center, dtype);
      kept->means = StoreOf(mean, dtype);
    }
    if (sum.kind != LateSum::Kind::kSquare || kept->squares >= 0) return *kept;
    const ValueId squares =
        Reduce(ir::ReduceKind::kSum, dtype, operation(body, ScalarOp::kMul, deviation, deviation),
               place.is_masked);
    const ValueId rest =
        operation(last, ScalarOp::kSub, squares, operation(last, ScalarOp::kMul, total, mean));
    const ValueId zero = last.Constant(dtype, 0);
    // No less than 0; infinite squares stay what they are.
    const auto choose = [&](ScalarOp when, ValueId then, ValueId otherwise) {
      const ValueId is = last.Operation(when, DType::kBool, {rest, zero});
      return last.Operation(ScalarOp::kSelect, dtype, {is, then, otherwise});
    };
    kept->squares =
        StoreOf(choose(ScalarOp::kGe, rest, choose(ScalarOp::kLt, zero, squares)), dtype);
    return *kept;
  }

  // The elements of part `part` of the cut loop, which counts for `least` of its iterations anyhow.
  ValueId NumElements(IntExpr part, int64_t least, DType dtype, Body& body) {
    IntExpr elements = ints_.Const(1);
    for (IntExpr var : kernel_.phases[0].inner) {
      if (var != plan_.loop && !center_vars_.contains(var)) {
        elements = ints_.Mul(elements, var.extent());
      }
    }
    if (plan_.loop && is_exact_) elements = ints_.Mul(elements, length_);
    if (plan_.loop && !is_exact_) {
      const IntExpr left = ints_.Sub(extent_, ints_.Mul(part, length_));
      elements = ints_.Mul(elements, ints_.Max(ints_.Min(left, length_), ints_.Const(least)));
    }
    if (elements.is_const()) return body.Constant(dtype, static_cast<double>(elements.value()));
    return body.Operation(ScalarOp::kCast, dtype, {body.Index(elements)});
  }

  // An element of each part that is hardly far from the others: of three the one between two.
  ValueId AddCenter(ValueId value, DType dtype) {
    Body body(parts_, kCenters);
    ValueId of[3];
    for (int i = 0; i < 3; ++i) {
      Place place{.vars = center_vars_};
      for (size_t j = 0; j < phase_->inner.size(); ++j) {
        const IntExpr var = kernel_.phases[0].inner[j];
        IntExpr& at = place.vars[phase_->inner[j]];
        if (const auto whole = center_vars_.find(var); whole != center_vars_.end()) {
          at = whole->second;
          continue;
        }
        const IntExpr extent = var == plan_.loop ? length_ : var.extent();
        at = ints_.FloorDiv(ints_.Mul(extent, i + 1), 4);
        if (var == plan_.loop) at = ints_.Add(ints_.Mul(part_, length_), at);
        at = ints_.Min(at, ints_.Sub(var.extent(), ints_.Const(1)));
      }
      of[i] = Copy(value, place, body);
    }
    const auto either = [&](ScalarOp op, ValueId a, ValueId b) {
      return body.Operation(op, dtype, {a, b});
    };
    const ValueId less = either(ScalarOp::kMin, of[0], of[1]);
    const ValueId more = either(ScalarOp::kMax, of[0], of[1]);
    return either(ScalarOp::kMax, less, either(ScalarOp::kMin, more, of[2]));
  }

  // A buffer for a value of each part: a part after another, or a column after another.
  ir::BufferId StoreOf(ValueId value, DType dtype) {
    const auto [stored, is_new] = stored_.try_emplace(value, -1);
    if (!is_new) return stored->second;
    const std::vector<IntExpr> loops = InOrder(parts_.outer);
    ir::Buffer buffer;
    buffer.name = absl::StrCat(kernel_.name, "_part", stored_.size() - 1);
    buffer.dtype = dtype;
    buffer.kind = ir::BufferKind::kTemp;
    for (IntExpr var : loops) buffer.sizes.push_back(var.extent());
    buffer.strides = module_.ContiguousStrides(buffer.sizes);
    stored->second = module_.AddBuffer(std::move(buffer));
    Inst store;
    store.op = ScalarOp::kStore;
    store.dtype = dtype;
    store.operands = {value};
    store.buffer = stored->second;
    store.indices = loops;
    parts_.phases[kStores].body.push_back(std::move(store));
    return stored->second;
  }

  ValueId LoadStored(ir::BufferId buffer, DType dtype, Body& merge) {
    std::vector<IntExpr> indices = at_;
    for (IntExpr var : kernel_.outer) indices.push_back(var);
    return merge.Load(dtype, buffer, InOrder(std::move(indices)));
  }

  std::vector<IntExpr> InOrder(std::vector<IntExpr> at) const {
    if (plan_.parts_beside) std::rotate(at.begin(), at.begin() + num_part_loops_, at.end());
    return at;
  }

  // Phases of parts_.
  static constexpr size_t kCenters = 0, kLoops = 1, kStores = 2;

  ir::Module& module_;
  IntContext& ints_;
  const CutPlan& plan_;
  Kernel& kernel_;
  Kernel parts_;
  IntContext::VarMap vars_;         // of the kernel's loops: what they are in parts_
  IntContext::VarMap center_vars_;  // those outside of its loops alone
  size_t num_part_loops_ = 0;
  IntExpr part_, place_, extent_, length_;  // of the cut loop
  bool is_exact_ = true;                    // all pieces are equally long
  std::vector<const Inst*> definitions_;    // by value of the kernel
  std::vector<Deviations> deviations_;
  absl::flat_hash_map<ValueId, ir::BufferId> stored_;  // by value of parts_
  // While a phase is cut: it, and its loops over the parts.
  const Phase* phase_ = nullptr;
  std::vector<IntExpr> at_;
};

}  // namespace

Kernel CutReduction(ir::Module& module, const CutPlan& plan, Kernel& kernel) {
  return Cutter(module, plan, kernel).Run();
}

}  // namespace kiln::schedule::ptx
