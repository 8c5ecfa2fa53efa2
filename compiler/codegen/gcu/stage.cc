#include "compiler/codegen/gcu/stage.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gcu/stage_impl.h"
#include "proto/gcu/instructions.inc.h"

namespace kiln::codegen::gcu {

using ir::Inst;
using ir::ScalarOp;

StageCoder::StageCoder(ir::Module& module, const Form& form, const Tiling& tiling,
                       const std::vector<Placement>& placements, const Machine& machine,
                       const StageOptions& options, Code& code)
    : module_(module),
      ints_(*module.ints),
      form_(form),
      tiling_(tiling),
      placements_(placements),
      machine_(machine),
      options_(options),
      code_(code),
      l1_(machine.l1_bytes, options.odd) {
  const auto count = static_cast<size_t>(form.kernel.num_values);
  views_.resize(count);
  definitions_.assign(count, nullptr);
  last_use_.assign(count, -1);
  phase_of_.assign(count, 0);
  int number = 0;
  for (size_t p = 0; p < form.kernel.phases.size(); ++p) {
    first_of_phase_.push_back(number);
    for (const Inst& inst : form.kernel.phases[p].body) {
      if (inst.result != ir::kNoValue) {
        definitions_[inst.result] = &inst;
        phase_of_[inst.result] = static_cast<int>(p);
      }
      for (ir::ValueId operand : inst.operands) last_use_[operand] = number;
      ++number;
    }
  }
  first_of_phase_.push_back(number);
  // A product that its sum makes needs its operands until then.
  for (const Inst* inst : definitions_) {
    if (inst == nullptr || !form.IsFactor(*inst)) continue;
    for (ir::ValueId operand : inst->operands) {
      last_use_[operand] = std::max(last_use_[operand], last_use_[inst->result]);
    }
  }
  for (const Loop& loop : form.loops) {
    extents_.push_back(schedule::gcu::TypicalOf(ints_, loop.extent));
  }
}

void StageCoder::CountTiles() {
  counts_.assign(form_.loops.size(), Known(1));
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    const bool outer = form_.loops[l].phase < 0;
    if (!outer && static_cast<int>(l) != tiling_.blocked) continue;
    const Scalar extent = code_.Evaluate(form_.loops[l].extent);
    const int64_t tile = tiling_.tile[l];
    counts_[l] = code_.Divide(code_.Add(extent, Known(tile - 1)), Known(tile));
  }
}

void StageCoder::Decode(Scalar step, std::vector<Scalar>& begins) {
  std::vector<int> order = tiling_.order;
  if (tiling_.blocked >= 0) order.push_back(tiling_.blocked);
  const int before = code_.mark();
  Scalar rest = step;
  for (size_t i = order.size(); i-- > 0;) {
    const int l = order[i];
    if (counts_[l].is(1)) continue;
    const bool slower = std::any_of(order.begin(), order.begin() + static_cast<ptrdiff_t>(i),
                                    [&](int other) { return !counts_[other].is(1); });
    const Scalar index = slower ? code_.Modulo(rest, counts_[l]) : rest;
    code_.Set(begins[l].reg, code_.Multiply(index, Known(tiling_.tile[l])));
    if (slower) rest = code_.Divide(rest, counts_[l]);
  }
  code_.Release(before);
}

Scalar StageCoder::ExtentOf(int loop, Scalar begin) {
  const ir::IntExpr extent = form_.loops[loop].extent;
  const int64_t tile = tiling_.tile[loop];
  if (tile == 1) return Known(1);
  if (extent.is_const() && extent.value() % tile == 0) return Known(tile);
  if (extent.is_const() && extent.value() <= tile) return Known(extent.value());
  return code_.Min(Known(tile), code_.Subtract(code_.Evaluate(extent), begin));
}

// Half of them are of odd stages.
int StageCoder::NewToken() {
  constexpr int kHalf = kStageTokens / 2;
  return tokens_++ % kHalf + (options_.odd ? kHalf : 0);
}

void StageCoder::Plan() {
  CountTiles();
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    if (!counts_[l].is(1)) moving_.push_back(static_cast<int>(l));
  }
  PlanLoads();
  PlanStores();
}

// This core's steps: those of a run of neighbouring tiles. Core c has the tiles from c * n / cores
// on.
void StageCoder::FindSteps(int step, int end) {
  const int scope = code_.mark();
  Scalar items = Known(1);
  for (int l : tiling_.order) items = code_.Multiply(items, counts_[l]);
  const Scalar blocks = tiling_.blocked < 0 ? Known(1) : counts_[tiling_.blocked];
  const Scalar core = InRegister(0), cores = InRegister(1);
  code_.Set(step, code_.Multiply(code_.Divide(code_.Multiply(core, items), cores), blocks));
  const Scalar next = code_.Add(core, Known(1));
  code_.Set(end, code_.Multiply(code_.Divide(code_.Multiply(next, items), cores), blocks));
  code_.Release(scope);
}

void StageCoder::TakeBegins(Place& place) {
  place.begins.assign(form_.loops.size(), Known(0));
  for (int l : moving_) place.begins[l] = InRegister(code_.NewRegister());
}

void StageCoder::SetExtents(Place& place) {
  place.extents.assign(form_.loops.size(), Known(1));
  for (size_t l = 0; l < form_.loops.size(); ++l) {
    if (tiling_.serial[l]) continue;
    const auto loop = static_cast<int>(l);
    if (form_.loops[l].phase < 0 || loop == tiling_.blocked) {
      place.extents[l] = ExtentOf(loop, place.begins[l]);
    } else if (schedule::gcu::IsPart(form_, tiling_, loop)) {
      place.extents[l] = Known(0);  // set where its loop runs
    } else {
      place.extents[l] = Known(form_.loops[l].extent.value());
    }
  }
}

// The first step's loads, and those of what all steps need.
void StageCoder::IssueFirst(const Place& first, bool fixed, bool others) {
  for (const Staged& staged : staged_) {
    if (staged.late || !(staged.fixed ? fixed : others)) continue;
    if (staged.twice || staged.depends.empty()) Issue(staged, first, Known(0));
  }
}

void StageCoder::Prefetch() {
  const int before = code_.mark();
  Plan();
  const int step = code_.NewRegister(), end = code_.NewRegister();
  FindSteps(step, end);
  Place first;
  TakeBegins(first);
  const Label none = code_.NewLabel();
  code_.JumpIf(Op::kJumpGreaterEqual, InRegister(step), InRegister(end), none);
  Decode(InRegister(step), first.begins);
  SetExtents(first);
  IssueFirst(first, true, false);
  code_.Bind(none);
  code_.Release(before);
}

absl::StatusOr<StageBytes> StageCoder::Run() {
  const int before = code_.mark();
  Plan();
  if (!code_.status().ok()) return code_.status();
  const int step = code_.NewRegister(), end = code_.NewRegister();
  FindSteps(step, end);
  Place current, next;
  TakeBegins(current);
  TakeBegins(next);
  for (Staged& staged : staged_) {
    if (!staged.twice) continue;
    staged.parity = code_.NewRegister();
    staged.next_parity = code_.NewRegister();
  }
  const auto ahead = [&] {
    if (options_.at_last) options_.at_last(code_);
  };
  const Label idle = code_.NewLabel(), done = code_.NewLabel(), top = code_.NewLabel();
  code_.JumpIf(Op::kJumpGreaterEqual, InRegister(step), InRegister(end), idle);
  Decode(InRegister(step), next.begins);
  {
    const int scope = code_.mark();
    SetExtents(next);
    for (const Staged& staged : staged_) {
      if (staged.twice) code_.Set(staged.next_parity, Known(0));
    }
    IssueFirst(next, !options_.prefetched, true);
    code_.Release(scope);
  }
  for (int l : moving_) code_.Set(current.begins[l].reg, Known(-1));

  code_.Bind(top);
  for (Staged& staged : staged_) {
    if (staged.late || staged.twice || staged.depends.empty()) continue;
    const int scope = code_.mark();
    SetExtents(next);
    IssueIfChanged(staged, next, current.begins);
    code_.Release(scope);
  }
  for (int l : moving_) code_.Set(current.begins[l].reg, next.begins[l]);
  for (const Staged& staged : staged_) {
    if (staged.twice) code_.Set(staged.parity, InRegister(staged.next_parity));
  }
  const int in_step = code_.mark();
  SetExtents(current);
  for (const Staged& staged : staged_) {
    if (!staged.late) code_.Wait(staged.token);
  }
  code_.Emit(Op::kAddImmediate, {step, step}, 1);
  const Label last = code_.NewLabel(), issued = code_.NewLabel();
  code_.JumpIf(Op::kJumpGreaterEqual, InRegister(step), InRegister(end), last);
  {
    const int scope = code_.mark();
    Decode(InRegister(step), next.begins);
    SetExtents(next);
    for (Staged& staged : staged_) {
      if (!staged.late && staged.twice) IssueIfChanged(staged, next, current.begins);
    }
    code_.Release(scope);
  }
  code_.Jump(issued);
  code_.Bind(last);
  ahead();
  code_.Bind(issued);
  if (options_.at_step) options_.at_step(code_, step);
  RunStep(current);
  code_.Release(in_step);
  code_.JumpIf(Op::kJumpLess, InRegister(step), InRegister(end), top);
  code_.Jump(done);
  code_.Bind(idle);
  ahead();
  code_.Bind(done);
  // Not for what was just issued for the next stage.
  for (const Access& access : form_.accesses) {
    if (access.inst->op == ScalarOp::kStore) code_.Wait(store_tokens_.at(access.inst));
  }
  code_.Release(before);
  if (!code_.status().ok()) return code_.status();
  if (l1_.peak() > machine_.l1_bytes) {
    return absl::UnimplementedError(
        absl::StrCat("a tile needs ", l1_.peak(), " bytes of L1, which has ", machine_.l1_bytes));
  }
  return StageBytes{.all = l1_.peak(), .fixed = fixed_bytes_};
}

void StageCoder::RunStep(const Place& place) {
  const int blocked = tiling_.blocked;
  const bool steps = HasSteps();
  const Label summed = code_.NewLabel(), end = code_.NewLabel();
  if (steps) {
    code_.JumpIf(Op::kJumpNotEqual, place.begins[blocked], Known(0), summed);
    InitializeSums(0, place);
    code_.Bind(summed);
  }
  for (size_t p = 0; p < form_.kernel.phases.size(); ++p) {
    RunPhase(static_cast<int>(p), place);
    if (p == 0 && steps) {
      const int scope = code_.mark();
      const Scalar reached = code_.Add(place.begins[blocked], Known(tiling_.tile[blocked]));
      code_.JumpIf(Op::kJumpLess, reached, code_.Evaluate(form_.loops[blocked].extent), end);
      code_.Release(scope);
    }
  }
  code_.Bind(end);
  for (View& view : views_) GiveBack(view);
}

std::vector<bool> StageCoder::OuterDims() const {
  std::vector<bool> dims;
  for (const Loop& loop : form_.loops) dims.push_back(loop.phase < 0);
  return dims;
}

bool StageCoder::HasLoops(int phase) const {
  for (int l : form_.LoopsOf(phase)) {
    if (form_.loops[l].phase < 0) continue;
    if (tiling_.serial[l] && !form_.loops[l].extent.is_const(1)) return true;
    if (!tiling_.serial[l] && schedule::gcu::IsPart(form_, tiling_, l)) return true;
  }
  return false;
}

void StageCoder::RunPhase(int phase, const Place& place) {
  if (phase == 0 && tiling_.matrix) {
    MultiplyMatrices(place);
    return;
  }
  if (!(phase == 0 && HasSteps()) && HasLoops(phase)) InitializeSums(phase, place);
  std::vector<int> loops;
  for (int l : form_.LoopsOf(phase)) {
    if (form_.loops[l].phase < 0 || l == tiling_.blocked) continue;
    if (tiling_.serial[l] || schedule::gcu::IsPart(form_, tiling_, l)) loops.push_back(l);
  }
  Place inside = place;
  InSerialLoops(loops, 0, inside, [&](const Place& at) { RunBody(phase, at); });
  // What lives on was made in loops, or is a phase's without any.
  for (ir::ValueId v = 0; v < static_cast<ir::ValueId>(views_.size()); ++v) {
    if (definitions_[v] == nullptr || phase_of_[v] > phase) continue;
    if (last_use_[v] < first_of_phase_[phase + 1]) GiveBack(views_[v]);
  }
}

void StageCoder::InSerialLoops(const std::vector<int>& loops, size_t next, Place& place,
                               const std::function<void(const Place&)>& body) {
  if (next == loops.size()) {
    body(place);
    return;
  }
  const int l = loops[next];
  const int scope = code_.mark();
  const int64_t tile = tiling_.serial[l] ? 1 : tiling_.tile[l];
  const Scalar extent = code_.Evaluate(form_.loops[l].extent);
  if (extent.known() && extent.value <= tile) {
    place.begins[l] = Known(0);
    place.extents[l] = extent;
    InSerialLoops(loops, next + 1, place, body);
    code_.Release(scope);
    return;
  }
  const int at = code_.NewRegister();
  const Label top = code_.NewLabel(), end = code_.NewLabel();
  code_.Set(at, Known(0));
  if (!extent.known()) code_.JumpIf(Op::kJumpGreaterEqual, InRegister(at), extent, end);
  code_.Bind(top);
  const int in_body = code_.mark();
  place.begins[l] = InRegister(at);
  place.extents[l] = tile == 1 ? Known(1) : ExtentOf(l, place.begins[l]);
  InSerialLoops(loops, next + 1, place, body);
  code_.Release(in_body);
  code_.Emit(Op::kAddImmediate, {at, at}, tile);
  code_.JumpIf(Op::kJumpLess, InRegister(at), extent, top);
  code_.Bind(end);
  code_.Release(scope);
}

void StageCoder::RunBody(int phase, const Place& place) {
  // Loads that nothing has made ahead: all at once, so that they wait for one another only.
  std::vector<const Staged*> late;
  for (const Inst& inst : form_.kernel.phases[phase].body) {
    if (inst.op != ScalarOp::kLoad) continue;
    const Staged& staged = staged_[staged_of_.at(&inst)];
    if (staged.late && !absl::c_linear_search(late, &staged)) late.push_back(&staged);
  }
  // What earlier phases store is there once it is stored.
  for (const Staged* staged : late) {
    for (const Access& access : form_.accesses) {
      if (access.inst->op == ScalarOp::kStore &&
          access.inst->buffer == staged->access->inst->buffer) {
        code_.Wait(store_tokens_.at(access.inst));
      }
    }
  }
  for (const Staged* staged : late) Issue(*staged, place, Known(0));
  for (const Staged* staged : late) code_.Wait(staged->token);
  int number = first_of_phase_[phase];
  for (const Inst& inst : form_.kernel.phases[phase].body) {
    const bool needed = inst.result == ir::kNoValue || form_.needed[inst.result];
    if (needed && !IsAddedAtOnce(inst, phase, place)) Compute(inst, phase, place);
    // Values of this phase that nothing reads any more.
    for (ir::ValueId operand : inst.operands) {
      if (last_use_[operand] == number && phase_of_[operand] == phase) GiveBack(views_[operand]);
    }
    if (inst.result != ir::kNoValue && last_use_[inst.result] < 0) GiveBack(views_[inst.result]);
    ++number;
  }
}

std::optional<CoreSteps> BusiestCore(const Form& form, const Tiling& tiling,
                                     const Machine& machine) {
  const auto count = [&](int loop) -> int64_t {
    const ir::IntExpr extent = form.loops[static_cast<size_t>(loop)].extent;
    const int64_t tile = tiling.tile[static_cast<size_t>(loop)];
    return extent.is_const() ? (extent.value() + tile - 1) / tile : 0;
  };
  int64_t items = 1;
  for (int l : tiling.order) items *= count(l);
  const int64_t blocks = tiling.blocked < 0 ? 1 : count(tiling.blocked);
  if (items * blocks == 0) return std::nullopt;
  CoreSteps most;
  for (int core = 0; core < machine.cores; ++core) {
    const int64_t first = core * items / machine.cores * blocks;
    const int64_t end = (core + 1) * items / machine.cores * blocks;
    if (end - first > most.count) most = {.core = core, .first = first, .count = end - first};
  }
  return most;
}

absl::StatusOr<StageBytes> AppendStage(ir::Module& module, const Form& form, const Tiling& tiling,
                                       const std::vector<Placement>& placements,
                                       const Machine& machine, const StageOptions& options,
                                       Code& code) {
  return StageCoder(module, form, tiling, placements, machine, options, code).Run();
}

void AppendPrefetch(ir::Module& module, const Form& form, const Tiling& tiling,
                    const std::vector<Placement>& placements, const Machine& machine,
                    const StageOptions& options, Code& code) {
  StageCoder(module, form, tiling, placements, machine, options, code).Prefetch();
}

}  // namespace kiln::codegen::gcu
