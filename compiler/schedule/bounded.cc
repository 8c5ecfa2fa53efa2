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

// Which of a loop's iterations may be skipped.
enum class Side { kLate, kEarly };

// What is known of a value in the iterations that may be skipped.
struct Known {
  enum { kNothing, kNumber, kFinite } what = kNothing;
  double number = 0;  // of kNumber; a bool's 0 or 1

  bool Is(double n) const { return what == kNumber && number == n; }
  bool IsFinite() const { return what == kFinite || (what == kNumber && std::isfinite(number)); }
};

// A buffer whose elements are `fill` where the index of `dimension` is past the row by more than
// `offset`, or, on the early side, by less.
struct Filled {
  size_t dimension = 0;
  int64_t offset = 0;
  double fill = 0;
};

// On one side, by loop variable.
using Offsets = absl::flat_hash_map<IntExpr, int64_t>;

class Finder {
 public:
  Finder(const ir::Module& module, const ir::Repeat& repeat, Side side)
      : module_(module), ints_(*module.ints), repeat_(repeat), side_(side) {}

  Offsets Run() && {
    for (size_t k = repeat_.before; k < repeat_.kernels.size() - repeat_.after; ++k) {
      fixed_ = TiledLoops(repeat_, k);
      row_ = fixed_.back();
      fixed_.pop_back();
      if (!VisitKernel(repeat_.kernels[k])) return {};
    }
    return std::move(loops_);
  }

 private:
  // False where a filled buffer is loaded in a way that is not understood.
  bool VisitKernel(const Kernel& kernel) {
    FindIndices(kernel);
    values_.assign(kernel.num_values, {});
    if (AddsUp(kernel)) {
      for (size_t i = repeat_.steps.size() - 1; i < kernel.outer.size(); ++i) {
        VisitSums(kernel, kernel.outer[i]);
      }
      return LoadsAreBounded(kernel);
    }
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

  // Values that are sums of indices and numbers.
  void FindIndices(const Kernel& kernel) {
    indices_.clear();
    ForEachInst(kernel, [&](const Inst& inst) {
      if (inst.op == ScalarOp::kIndex) indices_[inst.result] = inst.indices[0];
      if (inst.dtype != DType::kI64) return;
      if (inst.op == ScalarOp::kConst) indices_[inst.result] = ints_.Const(inst.immediate_int);
      if (inst.op != ScalarOp::kAdd && inst.op != ScalarOp::kSub) return;
      const auto a = indices_.find(inst.operands[0]), b = indices_.find(inst.operands[1]);
      if (a == indices_.end() || b == indices_.end()) return;
      const bool adds = inst.op == ScalarOp::kAdd;
      const IntExpr value =
          adds ? ints_.Add(a->second, b->second) : ints_.Sub(a->second, b->second);
      indices_[inst.result] = value;
    });
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

  // Whether a row itself is in what may not be skipped.
  bool HoldsRow(int64_t offset) const { return side_ == Side::kLate ? offset >= 0 : offset <= 0; }
  // Whether what holds past `other` holds past `offset`, too.
  bool IsPast(int64_t offset, int64_t other) const {
    return side_ == Side::kLate ? offset >= other : offset <= other;
  }

  // Whether all that the kernel stores is known for the skipped iterations of its outer loop `col`.
  bool VisitOuter(const Kernel& kernel, IntExpr col) {
    std::optional<int64_t> offset = OffsetOf(kernel.phases, col);
    if (!offset || !HoldsRow(*offset)) return false;
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

  // Bounds the outer loop `col` of a kernel that AddsUp where what is added there is zero.
  void VisitSums(const Kernel& kernel, IntExpr col) {
    const Phase& phase = kernel.phases[0];
    const std::optional<int64_t> offset = OffsetOf({&phase, 1}, col);
    if (!offset || !HoldsRow(*offset)) return;
    for (const Inst& inst : phase.body) Evaluate(inst, col, *offset);
    if (IsNeutral(phase.body.back())) loops_[col] = *offset;
  }

  // Makes `col` bounded where the skipped iterations of the phase's loop change no reduction and
  // store what is known.
  void VisitInner(const Phase& phase, IntExpr col) {
    const std::optional<int64_t> offset = OffsetOf({&phase, 1}, col);
    std::vector<std::pair<BufferId, Filled>> made;
    bool changes = !offset || !HoldsRow(*offset);
    for (const Inst& inst : phase.body) {
      Evaluate(inst, offset ? col : IntExpr(), offset.value_or(0));
      if (inst.op == ScalarOp::kReduce) {
        const bool is_neutral = IsNeutral(inst);
        changes |= !is_neutral;
        const bool is_number =
            inst.reduce_kind == ReduceKind::kMax || inst.reduce_kind == ReduceKind::kSum;
        if (is_number && is_neutral) values_[inst.result].what = Known::kFinite;
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
    switch (reduce.reduce_kind) {
      case ReduceKind::kSum:
      case ReduceKind::kAny:
        return operand.Is(0);
      case ReduceKind::kMax:
        return operand.Is(-kInfinity);
      default:
        return false;
    }
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

  // How far `col` must be past the row for comparisons to be decided, or filled elements to be
  // loaded; nothing where neither is done.
  std::optional<int64_t> OffsetOf(absl::Span<const Phase> phases, IntExpr col) const {
    std::optional<int64_t> offset;
    const auto take = [&](int64_t o) {
      if (!offset || IsPast(o, *offset)) offset = o;
    };
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

  // For a comparison that holds where `col <= row + offset`, on the early side where
  // `col >= row + offset`: the offset.
  std::optional<int64_t> LimitOf(const Inst& inst, IntExpr col) const {
    const bool less = inst.op == ScalarOp::kLe || inst.op == ScalarOp::kLt;
    const bool greater = inst.op == ScalarOp::kGe || inst.op == ScalarOp::kGt;
    if (!col || (!less && !greater)) return std::nullopt;
    const bool is_late = side_ == Side::kLate;
    const auto a = indices_.find(inst.operands[less == is_late ? 0 : 1]);
    const auto b = indices_.find(inst.operands[less == is_late ? 1 : 0]);
    if (a == indices_.end() || b == indices_.end()) return std::nullopt;
    // a - b is col - row + rest; it holds where that is at most 0, or at least 0.
    const IntExpr rest = ints_.Add(ints_.Sub(ints_.Sub(a->second, b->second), col), row_);
    if (!rest.is_const()) return std::nullopt;
    const int strict = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kGt ? 1 : 0;
    return -rest.value() - (is_late ? strict : -strict);
  }

  // For the skipped iterations of `col`.
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
        if (filled != nullptr) {
          if (!inst.has_mask && IsPast(offset, filled->offset)) number(filled->fill);
        } else if (IsStatistic(inst, col)) {
          value.what = Known::kFinite;
        }
        return;
      }
      case ScalarOp::kLe:
      case ScalarOp::kLt:
      case ScalarOp::kGe:
      case ScalarOp::kGt: {
        const auto limit = LimitOf(inst, col);
        if (limit && IsPast(offset, *limit)) number(0);
        return;
      }
      case ScalarOp::kEq:
        if (operand(0).what == Known::kNumber && operand(1).what == Known::kNumber) {
          number(operand(0).number == operand(1).number ? 1 : 0);
        }
        return;
      case ScalarOp::kNot:
        if (inst.dtype == DType::kBool && operand(0).what == Known::kNumber) {
          number(operand(0).number == 0 ? 1 : 0);
        }
        return;
      case ScalarOp::kAnd:
        if (inst.dtype == DType::kBool && (operand(0).Is(0) || operand(1).Is(0))) number(0);
        return;
      case ScalarOp::kOr:
        if (inst.dtype == DType::kBool && (operand(0).Is(1) || operand(1).Is(1))) number(1);
        return;
      case ScalarOp::kSelect:
        if (operand(0).what == Known::kNumber) {
          value = operand(operand(0).number != 0 ? 1 : 2);
        } else if (operand(1).what == Known::kNumber && operand(2).Is(operand(1).number)) {
          value = operand(1);
        } else if (operand(1).Is(0) && operand(2).what == Known::kFinite) {
          value = operand(2);  // the maximum, or 0 for a row without keys
        }
        return;
      case ScalarOp::kCast:
        if (!IsFloat(inst.dtype)) return;
        if (operand(0).Is(0) || operand(0).Is(-kInfinity) || operand(0).what == Known::kFinite) {
          value = operand(0);
        }
        return;
      case ScalarOp::kAdd:
        if (operand(0).Is(-kInfinity) || operand(1).Is(-kInfinity)) {
          number(-kInfinity);
        } else if (operand(0).Is(0) && operand(1).Is(0)) {
          number(0);
        } else {
          EvaluateFinite(inst, value);
        }
        return;
      case ScalarOp::kSub:
        if (operand(0).Is(-kInfinity) && operand(1).IsFinite()) {
          number(-kInfinity);
        } else if (operand(0).Is(0) && operand(1).Is(0)) {
          number(0);
        } else {
          EvaluateFinite(inst, value);
        }
        return;
      case ScalarOp::kExp:
        if (operand(0).Is(-kInfinity)) number(0);
        return;
      case ScalarOp::kMul:
        if (operand(0).Is(0) || operand(1).Is(0)) {
          number(0);
        } else {
          EvaluateFinite(inst, value);
        }
        return;
      case ScalarOp::kDiv:
      case ScalarOp::kLog:
        EvaluateFinite(inst, value);
        return;
      default:
        return;
    }
  }

  // Of finite numbers comes one.
  void EvaluateFinite(const Inst& inst, Known& value) const {
    if (!IsFloat(inst.dtype)) return;
    if (absl::c_all_of(inst.operands, [&](ir::ValueId id) { return values_[id].IsFinite(); })) {
      value.what = Known::kFinite;
    }
  }

  // Whether a load reads one float for all of a row, or for all of a column: what there is one of
  // for many weights is a maximum or a logarithm of a sum. Were it infinite, the iterations that
  // are not skipped would show it.
  bool IsStatistic(const Inst& load, IntExpr col) const {
    if (!IsFloat(load.dtype) || !load.operands.empty() || filled_.contains(load.buffer)) {
      return false;
    }
    return absl::c_count_if(load.indices, [&](IntExpr i) { return i == row_ || i == col; }) == 1 &&
           absl::c_all_of(load.indices, [&](IntExpr i) {
             return i == row_ || i == col || i.is_const() || absl::c_linear_search(fixed_, i);
           });
  }

  const ir::Module& module_;
  IntContext& ints_;
  const ir::Repeat& repeat_;
  const Side side_;
  IntExpr row_;
  std::vector<IntExpr> fixed_;  // the kernel's other tiled loops
  std::vector<Known> values_;
  absl::flat_hash_map<ir::ValueId, IntExpr> indices_;
  absl::flat_hash_map<BufferId, Filled> filled_;
  Offsets loops_;
};

}  // namespace

BoundedLoops FindBoundedLoops(const ir::Module& module, const ir::Repeat& repeat) {
  BoundedLoops found;
  for (const auto& [var, end] : Finder(module, repeat, Side::kLate).Run()) found[var].end = end;
  for (const auto& [var, begin] : Finder(module, repeat, Side::kEarly).Run()) {
    found[var].begin = begin;
  }
  return found;
}

}  // namespace kiln::schedule
