#include "compiler/schedule/row_scheduler.h"

#include <algorithm>
#include <utility>

namespace kiln::schedule {

using ir::IntExpr;
using ir::ScalarOp;

RowScheduler::RowScheduler(Builder& builder, const Nest& nest, const LanesPlan& plan)
    : builder_(builder),
      ints_(builder.ints()),
      nest_(nest),
      plan_(plan),
      accumulators_(builder, nest, plan.outer) {}

std::vector<IntExpr> RowScheduler::PhaseLoops(size_t phase) const {
  std::vector<IntExpr> loops;
  if (plan_.outer) {
    loops.push_back(plan_.lanes.var);
    for (IntExpr var : nest_.phases[phase].inner) loops.push_back(var);
    return loops;
  }
  IntExpr lane_var = plan_.phase_lanes[phase].var;
  for (IntExpr var : nest_.phases[phase].inner) {
    if (var != lane_var) loops.push_back(var);
  }
  if (lane_var) loops.push_back(lane_var);
  return loops;
}

bool RowScheduler::Keep(const std::vector<KeptValue>& values, Space space, Block& out) {
  for (const KeptValue& value : values) {
    if (plan_.outer || !plan_.phase_lanes[value.first_phase].var ||
        !plan_.phase_lanes[value.second_phase].var) {
      continue;
    }
    const auto [row, is_new] = kept_.try_emplace(value.first);
    if (is_new) {
      const Alloc alloc{value.first->dtype, ints_.Const(value.extent), space, {}, false};
      row->second = {builder_.Open(alloc, out), true};
    }
    const AllocId alloc = row->second.alloc;
    kept_[value.second] = {alloc, false};
  }
  return !kept_.empty();
}

void RowScheduler::Share(IntExpr var, IntExpr first, int64_t step) {
  shared_ = var;
  first_ = first;
  step_ = step;
  accumulators_.Share(var, step);
}

// A reduction whose loops all have one iteration.
void RowScheduler::AddReduceOfOne(const Step& step, Block& out) {
  const ir::Inst& inst = *step.inst;
  // Below the lanes, even where the operand is the same for all of them: its users are.
  builder_.SetLevel(inst.result, std::max(builder_.LevelOf(inst.operands[0]), plan_.outer ? 1 : 0));
  if (IsArg(inst.reduce_kind)) {
    ir::Inst zero;
    zero.op = ScalarOp::kConst;
    zero.dtype = inst.dtype;
    zero.result = inst.result;
    out.push_back({Compute{std::move(zero), -1, false}});
  } else {
    builder_.Alias(inst.result, builder_.Resolve(inst.operands[0]));
  }
}

void RowScheduler::AddStep(const NestPhase& phase, const Step& step, Block& out) {
  const ir::Inst& inst = *step.inst;
  const auto row = kept_.find(&inst);
  if (row != kept_.end() && !row->second.stored) {
    builder_.AddLoad(inst.result, inst.dtype, row->second.alloc, lanes_.var, out);
    return;
  }
  if (inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) {
    if (phase.inner.empty()) {
      AddReduceOfOne(step, out);
    } else {
      accumulators_.Add(step, out);
    }
    return;
  }
  builder_.AddStep(step, out);
  if (row != kept_.end()) {
    builder_.AddStore(inst.result, inst.dtype, row->second.alloc, lanes_.var, out);
  }
}

void RowScheduler::AddLevel(const NestPhase& phase, const std::vector<IntExpr>& loops,
                            const std::vector<int>& levels, int level, Block& out) {
  for (size_t i = 0; i < phase.steps.size(); ++i) {
    if (levels[i] == level) AddStep(phase, phase.steps[i], out);
  }
  if (level == static_cast<int>(loops.size())) return;
  IntExpr var = loops[level];
  const bool has_lanes = !plan_.outer && var == lanes_.var && lanes_.width > 1;
  Loop loop = builder_.Whole(var, has_lanes ? Binding::kVector : Binding::kSerial,
                             has_lanes ? lanes_.width : 1);
  if (var == shared_) {
    loop.begin = first_;
    loop.step = ints_.Const(step_);
  }
  if (level != accumulators_.block_level()) {
    AddLevel(phase, loops, levels, level + 1, builder_.AddLoop(loop, out));
    return;
  }
  // In pieces that the phase's accumulators sum by themselves.
  const int64_t length = accumulators_.block_length();
  const IntExpr begin = loop.begin;
  Block& piece = builder_.AddSteps(loop.begin, loop.end, begin, loop.end, ints_.Const(length),
                                   Binding::kSerial, out);
  accumulators_.BeginBlock(piece);
  loop.end = ints_.Min(ints_.Add(loop.begin, length), loop.end);
  AddLevel(phase, loops, levels, level + 1, builder_.AddLoop(loop, piece));
  accumulators_.EndBlock(piece);
}

// One phase, from the level at which it stands: a row, or the lanes of a row.
void RowScheduler::AddPhase(size_t number, Block& out) {
  const NestPhase& phase = nest_.phases[number];
  const std::vector<IntExpr> loops = PhaseLoops(number);
  const int base = plan_.outer ? 1 : 0;
  std::vector<int> levels;
  for (const Step& step : phase.steps) {
    levels.push_back(builder_.LevelOf(step, loops));
    if (step.inst->result >= 0) builder_.SetLevel(step.inst->result, levels.back());
  }
  lanes_ = plan_.outer ? plan_.lanes : plan_.phase_lanes[number];
  if (!phase.inner.empty()) accumulators_.Open(phase, loops, base, lanes_, out);
  AddLevel(phase, loops, levels, base, out);
  if (!phase.inner.empty()) {
    accumulators_.Close(out);
    for (const Step& step : phase.steps) {
      if (step.inst->op == ScalarOp::kReduce) builder_.SetLevel(step.inst->result, base);
    }
  }
}

void RowScheduler::AddPhases(Block& out) {
  for (size_t i = 0; i < nest_.phases.size(); ++i) AddPhase(i, out);
}

void RowScheduler::AddAboveLanes(Block& out) {
  lanes_ = {};
  for (size_t i = 0; i < nest_.phases.size(); ++i) {
    const std::vector<IntExpr> loops = PhaseLoops(i);
    for (const Step& step : nest_.phases[i].steps) {
      const int level = builder_.LevelOf(step, loops);
      if (step.inst->result >= 0) {
        builder_.SetLevel(step.inst->result, step.inst->op == ScalarOp::kReduce ? 1 : level);
      }
      if (level == 0) builder_.AddStep(step, out);
    }
  }
}

void RowScheduler::AddLanesBody(const Loop& lanes, Block& out) {
  AddAboveLanes(out);
  AddPhases(builder_.AddLoop(lanes, out));
}

}  // namespace kiln::schedule
