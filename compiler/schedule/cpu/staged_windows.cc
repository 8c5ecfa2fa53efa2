#include "compiler/schedule/cpu/staged_windows.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/cache_hints.h"
#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/cpu/interior.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ReduceKind;
using ir::ScalarOp;
using ir::ValueId;

constexpr int64_t kLeastPoints = 4;    // of a window: what is laid out is read more often
constexpr int64_t kMostPoints = 128;   // of a window: sums without levels
constexpr int64_t kLeastPlanes = 8;    // tasks
constexpr int64_t kNarrowVectors = 4;  // rows of fewer than this are worth the copy by themselves
constexpr int64_t kMostElements = 1 << 16;  // of a plane

// One dimension of the plane: outer loop `at` and inner loop `tap` reach place
// stride * at + dilation * tap. No loops: the plane has one row.
struct Axis {
  IntExpr at, tap;
  int64_t stride = 1, dilation = 1;
  int64_t unit = 0;    // elements from one place to the next
  int64_t length = 1;  // places
  IntExpr place;       // a new variable

  int64_t PlacesFor(int64_t count, int64_t taps) const {
    return stride * (count - 1) + dilation * (taps - 1) + 1;
  }
};

class StagedWindows {
 public:
  StagedWindows(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                const VectorPlan& plan, VectorIsa isa, const DeviceInfo& device)
      : ints_(*module.ints),
        nest_(nest),
        plan_(plan),
        builder_(module, kernel, nest),
        l1_bytes_(device.l1_bytes) {
    if (!nest.outer.empty()) lane_ = nest.outer.back();
    may_ = IsOneReduction() && FindLoad() && FindAxes() && FindPlane(isa) && MoveSteps();
  }

  bool may() const { return may_; }
  Tree Run() &&;

 private:
  bool IsOneReduction() const;
  bool FindLoad();
  bool FindAxes();
  bool FindAxis(IntExpr at, IntExpr tap, Axis& axis);
  bool FindPlane(VectorIsa isa);
  bool MoveSteps();
  bool MoveAlong(const Axis& axis, IntExpr& index);
  void LayOut(Block& out);
  void AddSums(Block& out);
  std::vector<const Step*> SumSteps() const;
  int64_t ExtentOf(IntExpr var) { return var ? Extent(ints_, var).value() : 1; }

  ir::IntContext& ints_;
  const Nest& nest_;
  const VectorPlan& plan_;
  Builder builder_;
  const int64_t l1_bytes_;
  bool may_ = false;
  IntExpr lane_;  // the loop of a row's lanes
  const Step* load_ = nullptr;
  Axis row_, column_;
  std::vector<IntExpr> planes_;  // the other outer loops
  int width_ = 1;
  int64_t lanes_ = 0;                 // of a row, in whole vectors
  int64_t pitch_ = 0;                 // of the plane as it is laid out
  std::vector<const Step*> made_of_;  // the load and what it needs
  std::vector<Step> moved_;           // the same at a place of the plane
  AllocId plane_ = -1;
  std::vector<AllocId> sums_;
  std::vector<const Inst*> reduces_;
};

bool StagedWindows::IsOneReduction() const {
  if (plan_.row_var || nest_.tile != nullptr || nest_.phases.empty() || nest_.outer.empty()) {
    return false;
  }
  for (size_t i = 0; i < nest_.phases.size(); ++i) {
    const NestPhase& phase = nest_.phases[i];
    if (phase.ordered || phase.inner.empty() == (i == 0)) return false;
    for (const Step& step : phase.steps) {
      if (i > 0 && step.inst->op == ScalarOp::kReduce) return false;  // over loops of one iteration
    }
  }
  return nest_.phases[0].inner.size() <= 2;
}

// The one load that moves with the lanes and with the window.
bool StagedWindows::FindLoad() {
  const NestPhase& phase = nest_.phases[0];
  for (const Step& step : phase.steps) {
    const Inst& inst = *step.inst;
    if (inst.op == ScalarOp::kStore) return false;
    if (inst.op == ScalarOp::kReduce) reduces_.push_back(&inst);
    if (inst.op != ScalarOp::kLoad || !ContainsVar(step.index, lane_)) continue;
    if (load_ != nullptr || NumIndirect(inst) > 0 || builder_.IsStored(inst.buffer)) return false;
    load_ = &step;
  }
  if (load_ == nullptr) return false;
  made_of_ = Closure(phase, load_->inst->result);
  // Nothing else moves with the lanes.
  for (const Step& step : phase.steps) {
    if (!absl::c_linear_search(made_of_, &step) && Uses(step, {lane_})) return false;
  }
  for (const Step* step : SumSteps()) {
    for (const ValueId id : step->inst->operands) {
      const bool is_masks = absl::c_any_of(made_of_, [&](const Step* of) {
        return of != load_ && of->inst->op != ScalarOp::kConst && of->inst->result == id;
      });
      if (is_masks) return false;
    }
  }
  return true;
}

// Phase 0 without what the load is made of, but for constants.
std::vector<const Step*> StagedWindows::SumSteps() const {
  std::vector<const Step*> steps;
  for (const Step& step : nest_.phases[0].steps) {
    const bool is_made = absl::c_linear_search(made_of_, &step);
    if (step.inst->op != ScalarOp::kReduce && (!is_made || step.inst->op == ScalarOp::kConst)) {
      steps.push_back(&step);
    }
  }
  return steps;
}

bool StagedWindows::FindAxis(IntExpr at, IntExpr tap, Axis& axis) {
  if (!Extent(ints_, at).is_const() || !Extent(ints_, tap).is_const()) return false;
  const IntExpr stride = ints_.CoefficientOf(load_->index, at);
  const IntExpr dilation = ints_.CoefficientOf(load_->index, tap);
  if (!stride || !dilation || !stride.is_const() || !dilation.is_const() || stride.value() < 1 ||
      dilation.value() < 1) {
    return false;
  }
  const int64_t unit = std::gcd(stride.value(), dilation.value());
  axis = {at, tap, stride.value() / unit, dilation.value() / unit, unit, 1, {}};
  axis.length = axis.PlacesFor(ExtentOf(at), ExtentOf(tap));
  axis.place = ints_.NewVar(ints_.Const(axis.length));
  return true;
}

bool StagedWindows::FindAxes() {
  const std::vector<IntExpr>& inner = nest_.phases[0].inner;
  if (!FindAxis(lane_, inner.back(), column_) || column_.unit != 1) return false;
  for (auto var = nest_.outer.rbegin(); var != nest_.outer.rend(); ++var) {
    if (*var == lane_) continue;
    Axis axis;
    const bool is_row = inner.size() == 2 && !row_.at && FindAxis(*var, inner[0], axis) &&
                        axis.stride <= ExtentOf(inner[0]) * axis.dilation;
    if (is_row) {
      row_ = axis;
    } else {
      planes_.insert(planes_.begin(), *var);
    }
  }
  return inner.size() == 1 || row_.at;
}

bool StagedWindows::FindPlane(VectorIsa isa) {
  const int64_t points = ExtentOf(row_.tap) * ExtentOf(column_.tap);
  const int64_t extent = ExtentOf(column_.at);
  width_ = VectorBytes(isa) / 4;
  while (width_ > 4 && width_ / 2 >= extent) width_ /= 2;
  lanes_ = (extent + width_ - 1) / width_ * width_;
  pitch_ = column_.PlacesFor(lanes_, ExtentOf(column_.tap));
  const bool helps = load_->inst->has_mask || column_.stride > 1 || extent % width_ != 0;
  const bool is_narrow = extent < kNarrowVectors * width_ || column_.stride > 1;
  return helps && points >= kLeastPoints && points <= kMostPoints &&
         row_.length * pitch_ <= kMostElements &&
         ints_.EvaluateAtHints(NumPoints(ints_, planes_)) >= kLeastPlanes &&
         (is_narrow || !PlanInterior(ints_, nest_, plan_));
}

// `index` in terms of the axis' place, where it moves with the axis' loops as places do.
bool StagedWindows::MoveAlong(const Axis& axis, IntExpr& index) {
  if (!axis.at) return true;
  const IntExpr along = ints_.CoefficientOf(index, axis.at);
  const IntExpr of_tap = ints_.CoefficientOf(index, axis.tap);
  if (!along || !of_tap || !along.is_const() || !of_tap.is_const()) return false;
  if (along.value() % axis.stride != 0) return false;
  const int64_t factor = along.value() / axis.stride;
  if (of_tap.value() != factor * axis.dilation) return false;
  index =
      ints_.Add(ints_.Substitute(index, {{axis.at, ints_.Const(0)}, {axis.tap, ints_.Const(0)}}),
                ints_.Mul(axis.place, factor));
  return true;
}

bool StagedWindows::MoveSteps() {
  for (const Step* step : made_of_) {
    Step moved = *step;
    if (step->index && !(MoveAlong(row_, moved.index) && MoveAlong(column_, moved.index))) {
      return false;
    }
    moved_.push_back(moved);
  }
  return true;
}

// plane[row][column]; what lies beyond the last column that anyone needs is 0.
void StagedWindows::LayOut(Block& out) {
  const DType type = load_->inst->dtype;
  const int64_t size = row_.length * pitch_;
  const Space space = TaskSpace(size * DTypeSize(type), l1_bytes_);
  plane_ = builder_.Open({type, ints_.Const(size), space, {}, false}, out);
  if (pitch_ != column_.length) {
    out.push_back(
        {Micro{MicroKind::kZero, {}, {{-1, plane_, ints_.Const(0)}}, {ints_.Const(size)}}});
  }
  std::vector<const Step*> steps;
  for (const Step& step : moved_) steps.push_back(&step);
  std::vector<Loop> loops;
  IntExpr index = column_.place;
  if (row_.at) {
    loops.push_back(builder_.Whole(row_.place));
    index = ints_.Add(index, ints_.Mul(row_.place, pitch_));
  }
  loops.push_back(builder_.Whole(column_.place, Binding::kVector, width_));
  builder_.AddNest(
      steps, loops, [](Block&) {},
      [&](Block& body) { builder_.AddStore(load_->inst->result, type, plane_, index, body); }, out);
}

// The reductions of one row, for whole vectors of lanes.
void StagedWindows::AddSums(Block& out) {
  const IntExpr lane = ints_.NewVar(ints_.Const(lanes_));
  Block& body =
      builder_.AddLoop({lane, ints_.Const(0), ints_.Const(lanes_), Binding::kVector, width_}, out);
  std::vector<AllocId> totals;
  for (const Inst* reduce : reduces_) {
    const auto operand = absl::c_find_if(nest_.phases[0].steps, [&](const Step& step) {
      return step.inst->result == reduce->operands[0];
    });
    totals.push_back(builder_.Open(
        {operand->inst->dtype, ints_.Const(1), Space::kRegister, reduce->reduce_kind, false},
        body));
  }
  IntExpr index =
      ints_.Add(ints_.Mul(lane, column_.stride), ints_.Mul(column_.tap, column_.dilation));
  if (row_.at) {
    const IntExpr row =
        ints_.Add(ints_.Mul(row_.at, row_.stride), ints_.Mul(row_.tap, row_.dilation));
    index = ints_.Add(index, ints_.Mul(row, pitch_));
  }
  std::vector<Loop> loops;
  for (IntExpr var : nest_.phases[0].inner) loops.push_back(builder_.Whole(var));
  const ValueId loaded = builder_.NewValue();
  builder_.Alias(load_->inst->result, loaded);
  builder_.SetLevel(load_->inst->result, static_cast<int>(loops.size()));
  const IntExpr number = PointNumber(ints_, nest_.phases[0].inner);
  builder_.AddNest(
      SumSteps(), loops,
      [&](Block& at) { builder_.AddLoad(loaded, load_->inst->dtype, plane_, index, at); },
      [&](Block& at) {
        for (size_t i = 0; i < reduces_.size(); ++i) {
          at.push_back(
              {Update{totals[i], ints_.Const(0), builder_.Resolve(reduces_[i]->operands[0]),
                      IsArg(reduces_[i]->reduce_kind) ? number : IntExpr()}});
        }
      },
      body);
  for (size_t i = 0; i < reduces_.size(); ++i) {
    const ValueId value = builder_.NewValue();
    body.push_back({Combine{value, reduces_[i]->dtype, totals[i]}});
    builder_.AddStore(value, reduces_[i]->dtype, sums_[i], lane, body);
  }
}

Tree StagedWindows::Run() && {
  builder_.tree().reasons.push_back(plan_.reason);
  builder_.tree().reasons.push_back(absl::StrCat("planes of ", row_.length, " x ", column_.length,
                                                 " laid out once for all windows"));
  Block root;
  Block* at = &root;
  for (IntExpr var : planes_) at = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *at);
  LayOut(*at);
  for (const Inst* reduce : reduces_) {
    sums_.push_back(
        builder_.Open({reduce->dtype, ints_.Const(lanes_), Space::kL1, {}, false}, *at));
  }
  if (row_.at) at = &builder_.AddLoop(builder_.Whole(row_.at), *at);
  AddSums(*at);
  for (const Inst* reduce : reduces_) builder_.SetLevel(reduce->result, 1);
  builder_.AddNest(
      LaterSteps(nest_), {builder_.Whole(column_.at, Binding::kVector, width_)},
      [&](Block& body) {
        for (size_t i = 0; i < reduces_.size(); ++i) {
          builder_.AddLoad(reduces_[i]->result, reduces_[i]->dtype, sums_[i], column_.at, body);
        }
      },
      [](Block&) {}, *at);
  builder_.tree().body = std::move(root);
  return std::move(builder_.tree());
}

}  // namespace

std::optional<Tree> ScheduleStagedWindows(ir::Module& module, const ir::Kernel& kernel,
                                          const Nest& nest, const VectorPlan& plan, VectorIsa isa,
                                          const DeviceInfo& device) {
  StagedWindows windows(module, kernel, nest, plan, isa, device);
  if (!windows.may()) return std::nullopt;
  return std::move(windows).Run();
}

}  // namespace kiln::schedule::cpu
