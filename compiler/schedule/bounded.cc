#include "compiler/schedule/bounded.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule {

using ir::BufferId;
using ir::Inst;
using ir::IntContext;
using ir::IntExpr;
using ir::Kernel;
using ir::Phase;
using ir::ReduceKind;
using ir::ScalarOp;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is known of a value in the iterations that may be skipped.
struct Known {
  enum { kNothing, kNumber, kRowMax } what = kNothing;
  double number = 0;  // of kNumber; a bool's 0 or 1

  bool Is(double n) const { return what == kNumber && number == n; }
};

// A buffer whose elements are `fill` where the index of `dimension` is past the row by more than
// `offset`.
struct Filled {
  size_t dimension = 0;
  int64_t offset = 0;
  double fill = 0;
};

class Finder {
 public:
  Finder(const ir::Module& module, const ir::Repeat& repeat)
      : module_(module), ints_(*module.ints), repeat_(repeat) {}

  BoundedLoops Run() && {
    for (const Kernel& kernel : repeat_.kernels) {
      row_ = kernel.outer[repeat_.steps.size() - 1];
      if (!VisitKernel(kernel)) return {};
    }
    return std::move(loops_);
  }

 private:
  // False where a filled buffer is loaded in a way that is not understood.
  bool VisitKernel(const Kernel& kernel) {
    indices_.clear();
    ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op == ScalarOp::kIndex) indices_[inst.result] = inst.indices[0];
    });
    for (size_t i = repeat_.steps.size(); i < kernel.outer.size(); ++i) {
      if (VisitOuter(kernel, kernel.outer[i])) return LoadsAreBounded(kernel);
    }
    values_.assign(kernel.num_values, {});
    for (const Phase& phase : kernel.phases) {
      if (phase.inner.size() == 1) {
        VisitInner(phase, phase.inner[0]);
      } else if (phase.inner.empty()) {
        for (const Inst& inst : phase.body) Evaluate(inst, IntExpr(), 0);
      }
    }
    return LoadsAreBounded(kernel);
  }

  bool LoadsAreBounded(const Kernel& kernel) const {
    bool bounded = true;
    ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op != ScalarOp::kLoad) return;
      const auto filled = filled_.find(inst.buffer);
      if (filled == filled_.end()) return;
      const auto bound = loops_.find(inst.indices[filled->second.dimension]);
      bounded &= bound != loops_.end() && bound->second == filled->second.offset;
    });
    return bounded;
  }

  // Whether all that the kernel stores is known for late iterations of its outer loop `col`.
  bool VisitOuter(const Kernel& kernel, IntExpr col) {
    std::optional<int64_t> offset = OffsetOf(kernel.phases, col);
    if (!offset || *offset < 0) return false;
    values_.assign(kernel.num_values, {});
    std::vector<std::pair<BufferId, Filled>> made;
    for (const Phase& phase : kernel.phases) {
      for (const Inst& inst : phase.body) {
        Evaluate(inst, col, *offset);
        if (inst.op == ScalarOp::kStore && !AddStore(inst, col, *offset, made)) return false;
      }
    }
    loops_[col] = *offset;
    filled_.insert(made.begin(), made.end());
    return true;
  }

  // Makes `col` bounded where late iterations of the phase's loop change no reduction and store
  // what is known.
  void VisitInner(const Phase& phase, IntExpr col) {
    const std::optional<int64_t> offset = OffsetOf({&phase, 1}, col);
    std::vector<std::pair<BufferId, Filled>> made;
    bool changes = !offset || *offset < 0;
    for (const Inst& inst : phase.body) {
      Evaluate(inst, offset ? col : IntExpr(), offset.value_or(0));
      if (inst.op == ScalarOp::kReduce) {
        const bool is_neutral = IsNeutral(inst);
        changes |= !is_neutral;
        if (inst.reduce_kind == ReduceKind::kMax && is_neutral) {
          values_[inst.result].what = Known::kRowMax;
        }
      }
      if (inst.op == ScalarOp::kStore) changes |= !offset || !AddStore(inst, col, *offset, made);
    }
    if (changes) return;
    loops_[col] = *offset;
    filled_.insert(made.begin(), made.end());
  }

  // Whether the operand is the reduction's identity.
  bool IsNeutral(const Inst& reduce) const {
    const Known& operand = values_[reduce.operands[0]];
    return operand.Is(reduce.reduce_kind == ReduceKind::kSum   ? 0
                      : reduce.reduce_kind == ReduceKind::kMax ? -kInfinity
                                                               : std::nan(""));
  }

  bool AddStore(const Inst& store, IntExpr col, int64_t offset,
                std::vector<std::pair<BufferId, Filled>>& made) const {
    const Known& value = values_[store.operands.back()];
    const auto at = absl::c_find(store.indices, col);
    if (value.what != Known::kNumber || at == store.indices.end() ||
        module_.buffers[store.buffer].kind != ir::BufferKind::kTile) {
      return false;
    }
    made.push_back(
        {store.buffer, {static_cast<size_t>(at - store.indices.begin()), offset, value.number}});
    return true;
  }

  // By how much `col` must be past the row for comparisons to be decided, or filled elements to be
  // loaded; nothing where neither is done.
  std::optional<int64_t> OffsetOf(absl::Span<const Phase> phases, IntExpr col) const {
    std::optional<int64_t> offset;
    const auto take = [&](int64_t o) { offset = std::max(offset.value_or(o), o); };
    for (const Phase& phase : phases) {
      for (const Inst& inst : phase.body) {
        if (const Filled* filled = FilledAlong(inst, col)) take(filled->offset);
        if (const auto limit = LimitOf(inst, col)) take(*limit);
      }
    }
    return offset;
  }

  // What a load reads whose index of the filled dimension is `col`; null for others.
  const Filled* FilledAlong(const Inst& inst, IntExpr col) const {
    if (inst.op != ScalarOp::kLoad || !col) return nullptr;
    const auto filled = filled_.find(inst.buffer);
    if (filled == filled_.end() || inst.indices[filled->second.dimension] != col) return nullptr;
    return &filled->second;
  }

  // For a comparison that holds where `col <= row + offset`: the offset.
  std::optional<int64_t> LimitOf(const Inst& inst, IntExpr col) const {
    const bool less = inst.op == ScalarOp::kLe || inst.op == ScalarOp::kLt;
    const bool greater = inst.op == ScalarOp::kGe || inst.op == ScalarOp::kGt;
    if (!col || (!less && !greater)) return std::nullopt;
    const auto a = indices_.find(inst.operands[less ? 0 : 1]);
    const auto b = indices_.find(inst.operands[less ? 1 : 0]);
    if (a == indices_.end() || b == indices_.end()) return std::nullopt;
    // a - b is col - row + rest.
    const IntExpr rest = ints_.Add(ints_.Sub(ints_.Sub(a->second, b->second), col), row_);
    if (!rest.is_const()) return std::nullopt;
    const bool strict = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kGt;
    return -rest.value() - (strict ? 1 : 0);
  }

  // For iterations of `col` past the row by more than `offset`.
  void Evaluate(const Inst& inst, IntExpr col, int64_t offset) {
    if (inst.result < 0) return;
    Known& value = values_[inst.result];
    value = {};
    const auto operand = [&](size_t i) { return values_[inst.operands[i]]; };
    const auto number = [&](double n) { value = {Known::kNumber, n}; };
    switch (inst.op) {
      case ScalarOp::kConst:
        number(IsFloat(inst.dtype) ? inst.immediate_float
                                   : static_cast<double>(inst.immediate_int));
        return;
      case ScalarOp::kLoad: {
        const Filled* filled = FilledAlong(inst, col);
        if (filled != nullptr && !inst.has_mask && filled->offset <= offset) number(filled->fill);
        return;
      }
      case ScalarOp::kLe:
      case ScalarOp::kLt:
      case ScalarOp::kGe:
      case ScalarOp::kGt: {
        const auto limit = LimitOf(inst, col);
        if (limit && *limit <= offset) number(0);
        return;
      }
      case ScalarOp::kAnd:
        if (inst.dtype == DType::kBool && (operand(0).Is(0) || operand(1).Is(0))) number(0);
        return;
      case ScalarOp::kSelect:
        if (operand(0).what == Known::kNumber) {
          value = operand(operand(0).number != 0 ? 1 : 2);
        } else if (operand(1).what == Known::kNumber && operand(2).Is(operand(1).number)) {
          value = operand(1);
        } else if (operand(1).Is(0) && operand(2).what == Known::kRowMax) {
          value = operand(2);  // the maximum, or 0 for a row without keys
        }
        return;
      case ScalarOp::kCast:
        if (IsFloat(inst.dtype) && (operand(0).Is(0) || operand(0).Is(-kInfinity))) {
          value = operand(0);
        }
        if (IsFloat(inst.dtype) && operand(0).what == Known::kRowMax) value = operand(0);
        return;
      case ScalarOp::kSub:
        if (operand(0).Is(-kInfinity) && operand(1).what == Known::kRowMax) number(-kInfinity);
        return;
      case ScalarOp::kExp:
        if (operand(0).Is(-kInfinity)) number(0);
        return;
      case ScalarOp::kMul:
        if (operand(0).Is(0) || operand(1).Is(0)) number(0);
        return;
      default:
        return;
    }
  }

  const ir::Module& module_;
  IntContext& ints_;
  const ir::Repeat& repeat_;
  IntExpr row_;
  std::vector<Known> values_;
  absl::flat_hash_map<ir::ValueId, IntExpr> indices_;  // of the kernel's kIndex values
  absl::flat_hash_map<BufferId, Filled> filled_;
  BoundedLoops loops_;
};

}  // namespace

BoundedLoops FindBoundedLoops(const ir::Module& module, const ir::Repeat& repeat) {
  return Finder(module, repeat).Run();
}

}  // namespace kiln::schedule
