#include "compiler/schedule/cpu/channel_windows.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/answers.h"
#include "compiler/schedule/cpu/inside_part.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ReduceKind;
using ir::ScalarOp;
using ir::ValueId;

constexpr int64_t kMostPoints = 128;    // of a window: sums without levels
constexpr int64_t kMostUnrolled = 32;   // taps that stand one after another in the code
constexpr int64_t kBlockBytes = 64;     // of channels that a task takes: a line
constexpr int64_t kLeastRows = 4;       // of a task, so that few are read by two
constexpr int64_t kSpareRegisters = 4;  // beside weights that stay in registers

// One inner loop: the taps [begin, end) of it that are inside at the place at hand.
struct Axis {
  IntExpr tap;
  int64_t taps = 1;
  std::vector<IntExpr> lowest, highest;  // begin is no less, end no more than these
  IntExpr begin, end;                    // variables, where there are any of those
};

class ChannelWindows {
 public:
  ChannelWindows(ir::Module& module, const ir::Kernel& kernel, const Nest& nest, VectorIsa isa)
      : ints_(*module.ints),
        nest_(nest),
        builder_(module, kernel, nest),
        registers_(isa == VectorIsa::kAvx512 ? 32 : 16),
        width_(VectorBytes(isa) / 4) {
    if (!nest.outer.empty()) lane_ = nest.outer.back();
    may_ = IsWindow() && FindBorders() && TakeMasksAway() && SortSteps() && IsContiguous();
  }

  bool may() const { return may_; }
  Tree Run() &&;

 private:
  bool IsWindow();
  bool FindBorders();
  bool AddBorder(IntExpr slack);
  bool TakeMasksAway();
  bool SortSteps();
  bool IsContiguous();
  void AddTable(Block& out);
  void AddStepsOf(const std::vector<const Step*>& steps, const std::vector<IntExpr>& vars,
                  size_t level, Block& out);
  void LetBorders(Block& out);
  void AddTaps(size_t axis, bool whole, ir::IntContext::VarMap& at, Block& out);
  void AddTap(const ir::IntContext::VarMap& at, Block& out);
  void AddUpdate(size_t reduce, ValueId value, IntExpr number, UpdateOrder order, Block& out);
  void AddOutside(Block& out);
  void OpenTotals(Block& out);
  size_t PlaceOf(const Inst& reduce) const;
  void AddPoint(Block& out);
  IntExpr Tap(const ir::IntContext::VarMap& at);
  int64_t NumTaps() const;
  // Of the task's channels.
  IntExpr End() {
    const IntExpr channels = Extent(ints_, lane_), end = ints_.Add(first_, block_);
    return ints_.Mod(channels, block_).is_const(0) ? end : ints_.Min(end, channels);
  }

  ir::IntContext& ints_;
  const Nest& nest_;
  Builder builder_;
  const int64_t registers_;
  IntExpr lane_;  // the loop of channels
  const int width_;
  bool may_ = false;
  bool has_masks_ = false;
  std::vector<IntExpr> outer_;  // loops but the lanes'
  std::vector<Axis> axes_;
  absl::flat_hash_set<ValueId> inside_;   // comparisons that are true in the part of the window
  std::vector<std::vector<Step>> steps_;  // of each phase, without the window's masks
  std::deque<Inst> insts_;
  std::vector<const Step*> fixed_;   // of phase 0: the same for all taps and places
  std::vector<const Step*> kept_;    // the same for all places
  std::vector<const Step*> moving_;  // the others
  std::vector<const Inst*> reduces_;
  absl::flat_hash_map<const Inst*, double> outside_;  // what those take in where a tap is outside
  struct Table {
    ValueId value;
    DType dtype;
    AllocId alloc = -1;
    std::vector<ValueId> held;  // of each tap, where registers hold them
  };
  std::vector<Table> tables_;    // of what moving steps use of the kept ones: [tap][channel]
  std::vector<AllocId> totals_;  // -1 where another reduction's has the result
  int64_t block_ = 0;            // channels that a task takes
  IntExpr first_;                // of these
};

int64_t ChannelWindows::NumTaps() const {
  int64_t taps = 1;
  for (const Axis& axis : axes_) taps *= axis.taps;
  return taps;
}

bool ChannelWindows::IsWindow() {
  if (!lane_ || 2 * ExtentHint(ints_, lane_) < width_) return false;
  if (nest_.tile != nullptr || nest_.phases.size() < 2) return false;
  for (size_t i = 0; i < nest_.phases.size(); ++i) {
    const NestPhase& phase = nest_.phases[i];
    if (phase.ordered || phase.inner.empty() == (i == 0)) return false;
    for (const Step& step : phase.steps) {
      const Inst& inst = *step.inst;
      if (inst.op == ScalarOp::kReduce && i > 0) return false;
      if (NumIndirect(inst) > 0 || (i == 0 && inst.op == ScalarOp::kStore)) return false;
    }
  }
  for (const IntExpr var : nest_.outer) {
    if (var != lane_) outer_.push_back(var);
  }
  for (const IntExpr tap : nest_.phases[0].inner) {
    const IntExpr extent = Extent(ints_, tap);
    if (!extent.is_const() || extent.value() > kMostPoints) return false;
    axes_.push_back({tap, extent.value(), {}, {}, {}, {}});
    if (NumTaps() > kMostPoints) return false;
  }
  return !outer_.empty();
}

// Where slack >= 0: a bound of the one tap that it moves with.
bool ChannelWindows::AddBorder(IntExpr slack) {
  if (ContainsVar(slack, lane_)) return false;
  Axis* of = nullptr;
  for (Axis& axis : axes_) {
    if (!ContainsVar(slack, axis.tap)) continue;
    if (of != nullptr) return false;
    of = &axis;
  }
  if (of == nullptr) return false;
  const IntExpr slope = ints_.CoefficientOf(slack, of->tap);
  if (!slope || !slope.is_const() || slope.value() == 0) return false;
  const IntExpr rest = ints_.Substitute(slack, {{of->tap, ints_.Const(0)}});
  if (slope.value() > 0) {
    of->lowest.push_back(ints_.CeilDiv(ints_.Mul(rest, -1), slope));
  } else {
    of->highest.push_back(ints_.Add(ints_.FloorDiv(rest, ints_.Const(-slope.value())), 1));
  }
  return true;
}

// Masks that all comparisons of a window's place with an end of the image make together.
bool ChannelWindows::FindBorders() {
  const absl::flat_hash_map<ValueId, IntExpr> values = IndexValues(ints_, nest_.phases);
  for (const Step& step : nest_.phases[0].steps) {
    const Inst& inst = *step.inst;
    const bool uses_answer =
        absl::c_any_of(inst.operands, [&](ValueId id) { return inside_.contains(id); });
    if (inst.op == ScalarOp::kAnd &&
        absl::c_all_of(inst.operands, [&](ValueId id) { return inside_.contains(id); })) {
      inside_.insert(inst.result);
      continue;
    }
    if (inst.op == ScalarOp::kLoad) {
      if (inst.has_mask && !inside_.contains(inst.operands.back())) return false;
      continue;
    }
    if (uses_answer) return false;
    const bool less = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kLe;
    if (!less && inst.op != ScalarOp::kGe && inst.op != ScalarOp::kGt) continue;
    const auto a = values.find(inst.operands[0]), b = values.find(inst.operands[1]);
    if (a == values.end() || b == values.end()) continue;
    const bool strict = inst.op == ScalarOp::kLt || inst.op == ScalarOp::kGt;
    const IntExpr slack = ints_.Add(
        less ? ints_.Sub(b->second, a->second) : ints_.Sub(a->second, b->second), strict ? -1 : 0);
    if (!AddBorder(slack)) return false;
    inside_.insert(inst.result);
  }
  return true;
}

bool ChannelWindows::TakeMasksAway() {
  has_masks_ =
      absl::c_any_of(nest_.phases[0].steps, [](const Step& step) { return step.inst->has_mask; });
  for (const Step& step : nest_.phases[0].steps) {
    if (step.inst->op != ScalarOp::kReduce) continue;
    const std::optional<InsidePart> inside = FindInsidePart(nest_.phases[0], *step.inst);
    if (!inside) return false;
    if (inside->once) outside_[step.inst] = *inside->once;
  }
  Answers answers;
  for (const ValueId id : inside_) answers[id] = true;
  steps_ = WithAnswers(nest_.phases, std::move(answers), insts_);
  return true;
}

bool ChannelWindows::SortSteps() {
  std::vector<IntExpr> taps;
  for (const Axis& axis : axes_) taps.push_back(axis.tap);
  absl::flat_hash_map<ValueId, int> kinds;  // 0 fixed, 1 kept, 2 moving
  absl::flat_hash_map<ValueId, DType> types;
  absl::flat_hash_map<ValueId, const Step*> numbers;  // of taps, which take no memory
  const std::function<void(ValueId)> move = [&](ValueId id) {
    if (absl::c_linear_search(moving_, numbers.at(id))) return;
    for (const ValueId operand : numbers.at(id)->inst->operands) move(operand);
    moving_.push_back(numbers.at(id));
  };
  for (const Step& step : steps_[0]) {
    const Inst& inst = *step.inst;
    if (inst.op == ScalarOp::kReduce) {
      reduces_.push_back(&inst);
      if (kinds[inst.operands[0]] != 2) return false;
      continue;
    }
    int kind = Uses(step, outer_) ? 2 : Uses(step, taps) ? 1 : 0;
    for (const ValueId id : inst.operands) kind = std::max(kind, kinds[id]);
    kinds[inst.result] = kind;
    types[inst.result] = inst.dtype;
    const bool casts = inst.op == ScalarOp::kCast && numbers.contains(inst.operands[0]);
    if (kind == 1 && IsInteger(inst.dtype) && (casts || inst.op == ScalarOp::kIndex)) {
      numbers[inst.result] = &step;
    }
    for (const ValueId id : inst.operands) {
      if (kind < 2 || kinds[id] != 1) continue;
      const bool is_new =
          absl::c_none_of(tables_, [&](const Table& table) { return table.value == id; });
      if (numbers.contains(id)) {
        move(id);
      } else if (is_new) {
        tables_.push_back({id, types[id], -1, {}});
      }
    }
    (kind == 2 ? moving_ : kind == 1 ? kept_ : fixed_).push_back(&step);
  }
  return !reduces_.empty();
}

// Along the lanes; and neither taps nor places step over less than all lanes, as those of windows
// along a row do, or next to nothing would be shared.
bool ChannelWindows::IsContiguous() {
  bool overlaps = !tables_.empty();
  for (const Step* step : moving_) {
    if (step->inst->op != ScalarOp::kLoad) continue;
    if (builder_.IsStored(step->inst->buffer)) return false;
    const IntExpr along = ints_.CoefficientOf(step->index, lane_);
    if (!along || !along.is_const(1)) return false;
    for (const Axis& axis : axes_) {
      overlaps |= !axis.lowest.empty() || !axis.highest.empty();
      const IntExpr step_of_tap = ints_.CoefficientOf(step->index, axis.tap);
      if (!step_of_tap || ContainsKind(step_of_tap, ir::IntKind::kVar)) return false;
      const int64_t elements = ints_.EvaluateAtHints(step_of_tap);
      if (std::abs(elements) < ExtentHint(ints_, lane_)) return false;
      for (const IntExpr var : outer_) {
        // Nothing where the place is divided, as in gradients of windows that step over places.
        const IntExpr of_place = ints_.CoefficientOf(step->index, var);
        if (!of_place) continue;
        const int64_t stride = ContainsKind(of_place, ir::IntKind::kVar)
                                   ? 0
                                   : std::abs(ints_.EvaluateAtHints(of_place));
        overlaps |= stride > 0 && stride < std::abs(elements) * axis.taps;
      }
    }
  }
  for (size_t i = 1; i < steps_.size(); ++i) {
    for (const Step& step : steps_[i]) {
      if (step.inst->op != ScalarOp::kStore) continue;
      const IntExpr along = ints_.CoefficientOf(step.index, lane_);
      if (!along || !along.is_const(1)) return false;
    }
  }
  return overlaps;
}

IntExpr ChannelWindows::Tap(const ir::IntContext::VarMap& at) {
  std::vector<IntExpr> taps;
  for (const Axis& axis : axes_) taps.push_back(axis.tap);
  return ints_.Substitute(PointNumber(ints_, taps), at);
}

// The task's channels of what all places share, once.
void ChannelWindows::AddTable(Block& out) {
  for (Table& table : tables_) {
    table.alloc =
        builder_.Open({table.dtype, ints_.Const(NumTaps() * block_), Space::kL1, {}, false}, out);
  }
  if (tables_.empty()) return;
  std::vector<const Step*> steps = fixed_;
  steps.insert(steps.end(), kept_.begin(), kept_.end());
  std::vector<Loop> loops;
  for (const Axis& axis : axes_) loops.push_back(builder_.Whole(axis.tap));
  loops.push_back({lane_, first_, End(), Binding::kVector, width_});
  const IntExpr at = ints_.Add(ints_.Mul(Tap({}), block_), ints_.Sub(lane_, first_));
  builder_.AddNest(
      steps, loops, [](Block&) {},
      [&](Block& body) {
        for (const Table& table : tables_) {
          builder_.AddStore(table.value, table.dtype, table.alloc, at, body);
        }
      },
      out);
}

// Those of `steps` that stand inside of exactly `level` of `vars`.
void ChannelWindows::AddStepsOf(const std::vector<const Step*>& steps,
                                const std::vector<IntExpr>& vars, size_t level, Block& out) {
  for (const Step* step : steps) {
    if (builder_.LevelOf(*step, vars) != static_cast<int>(level)) continue;
    builder_.AddStep(*step, out);
  }
}

// The part of each axis that is inside, 0 <= begin, end <= taps, for the place at hand.
void ChannelWindows::LetBorders(Block& out) {
  for (Axis& axis : axes_) {
    const IntExpr taps = ints_.Const(axis.taps), zero = ints_.Const(0);
    axis.begin = zero;
    axis.end = taps;
    for (const IntExpr low : axis.lowest) axis.begin = ints_.Max(axis.begin, low);
    for (const IntExpr high : axis.highest) axis.end = ints_.Min(axis.end, high);
    if (!axis.lowest.empty()) axis.begin = builder_.Let(ints_.Min(axis.begin, taps), taps, out);
    if (!axis.highest.empty()) axis.end = builder_.Let(ints_.Max(axis.end, zero), taps, out);
  }
}

// One tap of the window, at `at` where its loops are unrolled.
void ChannelWindows::AddTap(const ir::IntContext::VarMap& at, Block& out) {
  const IntExpr tap = Tap(at);
  for (const Table& table : tables_) {
    if (tap.is_const() && !table.held.empty()) {
      builder_.Alias(table.value, table.held[tap.value()]);
      continue;
    }
    builder_.Alias(table.value, builder_.NewValue());
    const IntExpr index = ints_.Add(ints_.Mul(tap, block_), ints_.Sub(lane_, first_));
    builder_.AddLoad(builder_.Resolve(table.value), table.dtype, table.alloc, index, out);
  }
  for (const Step* step : moving_) {
    Step moved = *step;
    if (step->index) moved.index = ints_.Substitute(step->index, at);
    builder_.Alias(step->inst->result, builder_.NewValue());
    builder_.AddStep(moved, out);
  }
  for (size_t i = 0; i < reduces_.size(); ++i) {
    // Taps come in order; what is outside came before those of a part.
    const UpdateOrder order = tap.is_const(0) ? UpdateOrder::kFirst : UpdateOrder::kLater;
    AddUpdate(i, builder_.Resolve(reduces_[i]->operands[0]), tap, order, out);
  }
}

void ChannelWindows::AddUpdate(size_t reduce, ValueId value, IntExpr number, UpdateOrder order,
                               Block& out) {
  const AllocId total = totals_[reduce];
  if (total < 0) return;
  Update update{total, ints_.Const(0), value, {}};
  if (IsArg(reduces_[reduce]->reduce_kind)) update.number = number;
  if (builder_.tree().allocs[total].narrow) update.order = order;
  out.push_back({update});
}

// What is outside, where something is: as the window's first tap.
void ChannelWindows::AddOutside(Block& out) {
  for (size_t i = 0; i < reduces_.size(); ++i) {
    const auto outside = outside_.find(reduces_[i]);
    if (outside == outside_.end() || totals_[i] < 0) continue;
    Inst& value = insts_.emplace_back();
    value.dtype = builder_.tree().allocs[totals_[i]].dtype;
    value.result = builder_.NewValue();
    value.immediate_float = outside->second;
    if (!IsFloat(value.dtype)) value.immediate_int = static_cast<int64_t>(outside->second);
    builder_.AddStep({&value, {}}, out);
    AddUpdate(i, value.result, ints_.Const(0), UpdateOrder::kFirst, out);
  }
}

// The taps of the loops from `axis` on; `whole`: all of them, unrolled where they are few.
void ChannelWindows::AddTaps(size_t axis, bool whole, ir::IntContext::VarMap& at, Block& out) {
  if (axis == axes_.size()) return AddTap(at, out);
  const Axis& of = axes_[axis];
  int64_t taps = 1;
  for (size_t i = axis; i < axes_.size(); ++i) taps *= axes_[i].taps;
  if (whole && taps <= kMostUnrolled) {
    for (int64_t tap = 0; tap < of.taps; ++tap) {
      at[of.tap] = ints_.Const(tap);
      AddTaps(axis + 1, whole, at, out);
    }
    at.erase(of.tap);
    return;
  }
  const IntExpr begin = whole ? ints_.Const(0) : of.begin;
  const IntExpr end = whole ? ints_.Const(of.taps) : of.end;
  AddTaps(axis + 1, whole, at, builder_.AddLoop({of.tap, begin, end}, out));
}

// The accumulators of the reductions at one place. One that keeps the place of the greatest value
// has that, too.
void ChannelWindows::OpenTotals(Block& out) {
  totals_.clear();
  for (const Inst* reduce : reduces_) {
    if (PlaceOf(*reduce) < reduces_.size()) {
      totals_.push_back(-1);
      continue;
    }
    const auto operand = absl::c_find_if(
        steps_[0], [&](const Step& step) { return step.inst->result == reduce->operands[0]; });
    const bool in_order = NumTaps() <= kMostUnrolled && (!has_masks_ || outside_.contains(reduce));
    totals_.push_back(
        builder_.Open({operand->inst->dtype, ints_.Const(1), Space::kRegister, reduce->reduce_kind,
                       false, in_order && IsArg(reduce->reduce_kind)},
                      out));
  }
}

// The number of the reduction to the place of the value that `reduce` gives; how many there are
// where there is none.
size_t ChannelWindows::PlaceOf(const Inst& reduce) const {
  const ReduceKind kind = reduce.reduce_kind == ReduceKind::kMax   ? ReduceKind::kArgMax
                          : reduce.reduce_kind == ReduceKind::kMin ? ReduceKind::kArgMin
                                                                   : ReduceKind::kSum;
  const auto same = absl::c_find_if(reduces_, [&](const Inst* other) {
    return other->reduce_kind == kind && other->operands == reduce.operands;
  });
  return IsArg(kind) ? static_cast<size_t>(same - reduces_.begin()) : reduces_.size();
}

// The reductions at one place.
void ChannelWindows::AddPoint(Block& out) {
  LetBorders(out);
  OpenTotals(out);
  IntExpr missing = ints_.Const(0);
  for (const Axis& axis : axes_) {
    missing =
        ints_.Add(missing, ints_.Sub(ints_.Const(axis.taps), ints_.Sub(axis.end, axis.begin)));
  }
  ir::IntContext::VarMap at;
  if (missing.is_const(0)) {
    AddTaps(0, /*whole=*/true, at, out);
  } else {
    If inside{missing, ints_.Const(1), {}, {}};
    AddTaps(0, /*whole=*/true, at, inside.then);
    AddOutside(inside.otherwise);
    AddTaps(0, /*whole=*/false, at, inside.otherwise);
    out.push_back({std::move(inside)});
  }
  for (size_t i = 0; i < reduces_.size(); ++i) {
    builder_.Alias(reduces_[i]->result, builder_.NewValue());
    const size_t place = PlaceOf(*reduces_[i]);
    const bool best = place < reduces_.size();
    out.push_back({Combine{builder_.Resolve(reduces_[i]->result), reduces_[i]->dtype,
                           totals_[best ? place : i], best}});
  }
}

Tree ChannelWindows::Run() && {
  int64_t bytes = 8;
  for (const std::vector<Step>& phase : steps_) {
    for (const Step& step : phase) {
      const bool is_access = step.inst->op == ScalarOp::kLoad || step.inst->op == ScalarOp::kStore;
      if (is_access) bytes = std::min(bytes, DTypeSize(step.inst->dtype));
    }
  }
  block_ = std::max<int64_t>(width_, kBlockBytes / bytes);
  const bool holds =
      NumTaps() * static_cast<int64_t>(tables_.size()) + kSpareRegisters <= registers_;
  builder_.tree().reasons.push_back(absl::StrCat("windows of ", NumTaps(),
                                                 " taps, vectors of channels; ",
                                                 tables_.empty() ? "nothing to keep for all places"
                                                 : holds         ? "weights stay in registers"
                                                         : "weights are laid out once a task"));
  Block root;
  Block* at = &root;
  // Rows for tasks are those of the loop before the last.
  const size_t split = outer_.size() < 2 ? 0 : outer_.size() - 2;
  std::vector<IntExpr> planes(outer_.begin(), outer_.begin() + static_cast<ptrdiff_t>(split));
  for (const IntExpr var : planes) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  const IntExpr channels = Extent(ints_, lane_);
  at = &builder_.AddSteps(first_, channels, ints_.Const(0), channels, ints_.Const(block_),
                          Binding::kTask, *at);
  IntExpr begin, end;
  const IntExpr copies =
      ints_.Mul(NumPoints(ints_, planes), ints_.CeilDiv(channels, ints_.Const(block_)));
  at = &builder_.AddTaskRuns(Extent(ints_, outer_[split]), kLeastRows, copies, begin, end, *at);
  AddTable(*at);

  std::vector<IntExpr> vars = {lane_};
  vars.insert(vars.end(), outer_.begin() + static_cast<ptrdiff_t>(split), outer_.end());
  std::vector<const Step*> later;
  for (size_t i = 1; i < steps_.size(); ++i) {
    for (const Step& step : steps_[i]) later.push_back(&step);
  }
  for (const Inst* reduce : reduces_) builder_.SetLevel(reduce->result, vars.size());
  for (const Step* step : later) {
    if (step->inst->result < 0) continue;
    builder_.SetLevel(step->inst->result, builder_.LevelOf(*step, vars));
  }
  for (const Step* step : fixed_) builder_.Alias(step->inst->result, builder_.NewValue());
  AddStepsOf(later, vars, 0, *at);
  at = &builder_.AddLoop({lane_, first_, End(), Binding::kVector, width_}, *at);
  for (const Step* step : fixed_) builder_.AddStep(*step, *at);
  for (Table& table : tables_) {
    for (int64_t tap = 0; holds && tap < NumTaps(); ++tap) {
      table.held.push_back(builder_.NewValue());
      const IntExpr index = ints_.Add(ints_.Sub(lane_, first_), tap * block_);
      builder_.AddLoad(table.held.back(), table.dtype, table.alloc, index, *at);
    }
  }
  for (size_t level = 1; level <= vars.size(); ++level) {
    if (level == vars.size()) AddPoint(*at);
    AddStepsOf(later, vars, level, *at);
    if (level == vars.size()) break;
    const bool is_split = vars[level] == outer_[split];
    at = &builder_.AddLoop(is_split ? Loop{vars[level], begin, end} : builder_.Whole(vars[level]),
                           *at);
  }
  builder_.tree().body = std::move(root);
  return std::move(builder_.tree());
}

}  // namespace

std::optional<Tree> ScheduleChannelWindows(ir::Module& module, const ir::Kernel& kernel,
                                           const Nest& nest, VectorIsa isa) {
  ChannelWindows windows(module, kernel, nest, isa);
  if (!windows.may()) return std::nullopt;
  return std::move(windows).Run();
}

}  // namespace kiln::schedule::cpu
