#include "compiler/schedule/cpu/row_dots.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/cache_hints.h"
#include "compiler/schedule/cpu/contraction_plan.h"

namespace kiln::schedule::cpu {
namespace {

using ir::Inst;
using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

constexpr int64_t kMostPoints = 4;       // rows that the matrix is multiplied with
constexpr int64_t kRows = 32;            // of the matrix, of a task
constexpr int64_t kLeast = 64;           // rows and columns of the matrix
constexpr int64_t kMostDepth = 1 << 15;  // of a sum without levels

class RowDots {
 public:
  RowDots(ir::Module& module, const ir::Kernel& kernel, const Nest& nest, const VectorPlan& plan,
          VectorIsa isa)
      : ints_(*module.ints), nest_(nest), builder_(module, kernel, nest) {
    builder_.tree().reasons.push_back(plan.reason);
    may_ = !plan.outer && nest.tile == nullptr && FindProduct() && FindMatrix();
    if (!may_) return;
    width_ = plan.phase_lanes[0].width / static_cast<int>(num_points_ > 1 ? 2 : 1);
    width_ = std::max(width_, VectorBytes(isa) / 4);
  }

  bool may() const { return may_; }
  Tree Run() &&;

 private:
  bool FindProduct();
  bool FindMatrix();
  bool IsMatrix(const std::vector<const Step*>& steps, IntExpr rows);
  bool IsStaged() const;
  void StageFactors(Block& out);
  void FetchAhead(const Step& step, Block& out);
  void AddRow(AllocId sums, IntExpr place, Block& out);
  void Finish(AllocId sums, IntExpr begin, IntExpr end, Block& out);
  DType type() const { return sum_->dtype; }

  ir::IntContext& ints_;
  const Nest& nest_;
  Builder builder_;
  bool may_ = false;
  int width_ = 1;
  IntExpr k_, rows_;             // the sum's loop, and that of the matrix's rows
  std::vector<IntExpr> batch_;   // outer loops that have a matrix each
  std::vector<IntExpr> points_;  // the others, which share it
  int64_t num_points_ = 1;
  const Inst* product_ = nullptr;
  const Inst* sum_ = nullptr;
  ValueId matrix_ = ir::kNoValue, factor_ = ir::kNoValue;  // the product's operands
  std::vector<const Step*> matrix_steps_, factor_steps_;
  AllocId factors_ = -1;  // [outer point][k]
};

// Phase 0 is a sum of products, and what follows has no loops.
bool RowDots::FindProduct() {
  const NestPhase& phase = nest_.phases[0];
  if (!IsOneReduction(nest_)) return false;
  k_ = phase.inner[0];
  for (const Step& step : phase.steps) {
    if (step.inst->op == ScalarOp::kStore || step.inst->op == ScalarOp::kScan) return false;
    if (step.inst->op != ScalarOp::kReduce) continue;
    if (sum_ != nullptr) return false;
    sum_ = step.inst;
  }
  if (sum_ == nullptr || sum_->reduce_kind != ir::ReduceKind::kSum) return false;
  if (type() != DType::kF32 && type() != DType::kF64) return false;
  for (const Step& step : phase.steps) {
    if (step.inst->result == sum_->operands[0]) product_ = step.inst;
  }
  return product_ != nullptr && product_->op == ScalarOp::kMul && product_->dtype == type() &&
         Extent(ints_, k_).range().max <= kMostDepth && ExtentHint(ints_, k_) >= kLeast;
}

// Whether `steps` compute elements of a matrix: rows of what is contiguous along the sum.
bool RowDots::IsMatrix(const std::vector<const Step*>& steps, IntExpr rows) {
  bool found = false;
  for (const Step* step : steps) {
    if (step->inst->op != ScalarOp::kLoad || !ContainsVar(step->index, k_)) continue;
    const IntExpr along = ints_.CoefficientOf(step->index, k_);
    if (!step->inst->operands.empty() || !along || !along.is_const(1)) return false;
    found |= ContainsVar(step->index, rows);
  }
  return found;
}

bool RowDots::FindMatrix() {
  for (int side = 0; side < 2; ++side) {
    matrix_ = product_->operands[side];
    factor_ = product_->operands[1 - side];
    matrix_steps_ = Closure(nest_.phases[0], matrix_);
    factor_steps_ = Closure(nest_.phases[0], factor_);
    for (IntExpr rows : nest_.outer) {
      batch_.clear();
      points_.clear();
      for (IntExpr var : nest_.outer) {
        if (var == rows) continue;
        (AnyUses(matrix_steps_, {var}) ? batch_ : points_).push_back(var);
      }
      const IntExpr count = NumPoints(ints_, points_);
      if (!count.is_const() || count.value() > kMostPoints || ExtentHint(ints_, rows) < kLeast) {
        continue;
      }
      if (AnyUses(factor_steps_, {rows})) continue;
      if (!AnyUses(factor_steps_, {k_}) || !IsMatrix(matrix_steps_, rows)) continue;
      rows_ = rows;
      num_points_ = count.value();
      return true;
    }
  }
  return false;
}

// Whether the factors are computed once for all rows of a task.
bool RowDots::IsStaged() const {
  return num_points_ > 1 || factor_steps_.size() > 1 || !factor_steps_[0]->inst->operands.empty();
}

void RowDots::StageFactors(Block& out) {
  const IntExpr depth = Extent(ints_, k_);
  factors_ = builder_.Open({type(), ints_.Mul(depth, num_points_), Space::kL2, {}, false}, out);
  Block* at = &out;
  for (IntExpr var : points_) at = &builder_.AddLoop(builder_.Whole(var), *at);
  const IntExpr index = ints_.Add(ints_.Mul(PointNumber(ints_, points_), depth), k_);
  builder_.AddNest(
      factor_steps_, {builder_.Whole(k_, Binding::kVector, width_)}, [](Block&) {},
      [&](Block& body) { builder_.AddStore(factor_, type(), factors_, index, body); }, *at);
}

// The rows lie one after another, or nearly so: what comes 4 KiB later is soon read, too.
void RowDots::FetchAhead(const Step& step, Block& out) {
  const Inst& inst = *step.inst;
  if (inst.op != ScalarOp::kLoad || DTypeSize(inst.dtype) >= 4) return;
  if (!ContainsVar(step.index, k_) || !ContainsVar(step.index, rows_)) return;
  const IntExpr index = ints_.Add(step.index, kBytesAhead / DTypeSize(inst.dtype));
  out.push_back({Prefetch{inst.buffer, index, width_}});
}

// sums[outer point][place] of one row of the matrix.
void RowDots::AddRow(AllocId sums, IntExpr place, Block& out) {
  std::vector<AllocId> totals;
  for (int64_t point = 0; point < num_points_; ++point) {
    const Alloc total{type(), ints_.Const(width_), Space::kRegister, ir::ReduceKind::kSum, false};
    totals.push_back(builder_.Open(total, out));
  }
  std::vector<const Step*> steps = matrix_steps_;
  if (factors_ < 0) steps.insert(steps.end(), factor_steps_.begin(), factor_steps_.end());
  builder_.AddNest(
      steps, {builder_.Whole(k_, Binding::kVector, width_)},
      [&](Block& body) {
        for (const Step* step : matrix_steps_) FetchAhead(*step, body);
      },
      [&](Block& body) {
        for (int64_t point = 0; point < num_points_; ++point) {
          ValueId factor = builder_.Resolve(factor_);
          if (factors_ >= 0) {
            factor = builder_.NewValue();
            const IntExpr first = ints_.Mul(Extent(ints_, k_), point);
            builder_.AddLoad(factor, type(), factors_, ints_.Add(first, k_), body);
          }
          Inst product = *product_;
          product.operands = {builder_.Resolve(matrix_), factor};
          product.result = builder_.NewValue();
          const ValueId value = product.result;
          body.push_back({Compute{std::move(product), -1, false}});
          body.push_back({Update{totals[point], ints_.Mod(k_, width_), value, {}}});
        }
      },
      out);
  for (int64_t point = 0; point < num_points_; ++point) {
    const ValueId value = builder_.NewValue();
    out.push_back({Combine{value, type(), totals[point]}});
    builder_.AddStore(value, type(), sums, ints_.Add(place, point * kRows), out);
  }
}

// The later phases for rows [begin, end) of the matrix.
void RowDots::Finish(AllocId sums, IntExpr begin, IntExpr end, Block& out) {
  const std::vector<const Step*> steps = LaterSteps(nest_);
  Block* at = &out;
  for (IntExpr var : points_) at = &builder_.AddLoop(builder_.Whole(var), *at);
  const IntExpr row = ints_.Mul(PointNumber(ints_, points_), kRows);
  builder_.SetLevel(sum_->result, 1);
  builder_.AddNest(
      steps, {{rows_, begin, end, Binding::kVector, std::min<int>(width_, kRows)}},
      [&](Block& body) {
        builder_.AddLoad(sum_->result, type(), sums, ints_.Add(row, ints_.Sub(rows_, begin)), body);
      },
      [](Block&) {}, *at);
}

Tree RowDots::Run() && {
  builder_.tree().reasons.push_back(
      absl::StrCat("rows of operand ", matrix_ == product_->operands[1] ? 1 : 0,
                   " are read once, as they lie in memory, for ", num_points_, " of the other"));
  Block root;
  Block* batch = &root;
  for (IntExpr var : batch_) batch = &builder_.AddLoop(builder_.Whole(var, Binding::kTask), *batch);
  const IntExpr extent = Extent(ints_, rows_);
  IntExpr begin;
  Block& task = builder_.AddSteps(begin, extent, ints_.Const(0), extent, ints_.Const(kRows),
                                  Binding::kTask, *batch);
  const IntExpr end = builder_.Let(ints_.Min(ints_.Add(begin, kRows), extent), extent, task);
  if (IsStaged()) StageFactors(task);
  const Alloc all{type(), ints_.Const(num_points_ * kRows), Space::kL1, {}, false};
  const AllocId sums = builder_.Open(all, task);
  Block& row = builder_.AddLoop({rows_, begin, end}, task);
  AddRow(sums, ints_.Sub(rows_, begin), row);
  Finish(sums, begin, end, task);
  builder_.tree().body = std::move(root);
  return std::move(builder_.tree());
}

}  // namespace

std::optional<Tree> ScheduleRowDots(ir::Module& module, const ir::Kernel& kernel, const Nest& nest,
                                    const VectorPlan& plan, VectorIsa isa) {
  RowDots dots(module, kernel, nest, plan, isa);
  if (!dots.may()) return std::nullopt;
  return std::move(dots).Run();
}

}  // namespace kiln::schedule::cpu
