#include "compiler/schedule/builder.h"

#include <algorithm>
#include <utility>

namespace kiln::schedule {

using ir::IntExpr;
using ir::ScalarOp;
using ir::ValueId;

Builder::Builder(ir::Module& module, const ir::Kernel& kernel, const Nest& nest)
    : ints_(*module.ints), nest_(nest), levels_(kernel.num_values, 0) {
  tree_.name = kernel.name;
  tree_.origins = kernel.origins;
  tree_.num_values = kernel.num_values;
  for (const NestPhase& phase : nest.phases) {
    for (const Step& step : phase.steps) {
      if (step.inst->op == ScalarOp::kStore) stored_.insert(step.inst->buffer);
    }
  }
}

Loop Builder::Whole(IntExpr var, Binding binding, int width) {
  if (const TilePart* part = nest_.PartOf(var)) {
    return {var, part->begin, part->end, binding, width};
  }
  return {var, ints_.Const(0), Extent(ints_, var), binding, width};
}

AllocId Builder::Open(Alloc alloc, Block& out) {
  const auto id = static_cast<AllocId>(tree_.allocs.size());
  tree_.allocs.push_back(std::move(alloc));
  out.push_back({schedule::Open{id}});
  return id;
}

Block& Builder::AddLoop(const Loop& loop, Block& out) {
  const IntExpr step = loop.step ? loop.step : ints_.Const(1);
  out.push_back({For{loop.var, loop.begin, loop.end, step, loop.binding, loop.width, {}}});
  return std::get<For>(out.back().value).body;
}

Block& Builder::AddSteps(IntExpr& var, IntExpr extent, IntExpr begin, IntExpr end, IntExpr step,
                         Binding binding, Block& out) {
  var = ints_.NewVar(extent);
  out.push_back({For{var, begin, end, step, binding, 1, {}}});
  return std::get<For>(out.back().value).body;
}

void Builder::AddLet(IntExpr var, IntExpr value, Block& out) {
  out.push_back({schedule::Let{var, value}});
}

IntExpr Builder::Let(IntExpr value, IntExpr most, Block& out) {
  if (value.is_const() || value.kind() == ir::IntKind::kVar) return value;
  const IntExpr var = ints_.NewVar(ints_.Add(most, 1));
  AddLet(var, value, out);
  return var;
}

Block& Builder::AddTaskRuns(IntExpr extent, int64_t unit, IntExpr copies, IntExpr& begin,
                            IntExpr& end, Block& out) {
  constexpr int64_t kTasksPerThread = 8;
  const IntExpr threads = tree_.threads = ints_.NewVar(ints_.Const(kMostThreads));
  const IntExpr one = ints_.Const(1);
  const IntExpr units = ints_.CeilDiv(extent, ints_.Const(unit));
  const IntExpr tasks = ints_.FloorDiv(ints_.Mul(threads, kTasksPerThread), ints_.Max(copies, one));
  const IntExpr parts = ints_.Max(one, ints_.Min(units, tasks));
  IntExpr part;
  Block& task = AddSteps(part, parts, ints_.Const(0), parts, one, Binding::kTask, out);
  const auto first = [&](IntExpr number) {
    return ints_.Mul(ints_.FloorDiv(ints_.Mul(units, number), parts), unit);
  };
  begin = Let(first(part), extent, task);
  end = Let(ints_.Min(first(ints_.Add(part, 1)), extent), extent, task);
  return task;
}

ValueId Builder::Resolve(ValueId id) const {
  const auto same = alias_.find(id);
  return same == alias_.end() ? id : same->second;
}

void Builder::AddStep(const Step& step, Block& out) {
  Compute made = ToCompute(step);
  for (ValueId& id : made.inst.operands) id = Resolve(id);
  made.inst.result = Resolve(made.inst.result);
  made.stream = made.inst.op == ScalarOp::kStore && streamed_.contains(made.inst.buffer);
  out.push_back({std::move(made)});
}

void Builder::AddLoad(ValueId result, DType dtype, AllocId from, IntExpr index, Block& out) {
  Compute made;
  made.inst.op = ScalarOp::kLoad;
  made.inst.dtype = dtype;
  made.inst.result = result;
  made.inst.indices = {index};
  made.alloc = from;
  out.push_back({std::move(made)});
}

void Builder::AddStore(ValueId value, DType dtype, AllocId to, IntExpr index, Block& out) {
  Compute made;
  made.inst.op = ScalarOp::kStore;
  made.inst.dtype = dtype;
  made.inst.operands = {Resolve(value)};
  made.inst.indices = {index};
  made.alloc = to;
  out.push_back({std::move(made)});
}

int Builder::LevelOf(const Step& step, const std::vector<IntExpr>& vars) const {
  const ir::Inst& inst = *step.inst;
  const int deepest = static_cast<int>(vars.size());
  if (inst.op == ScalarOp::kStore || inst.op == ScalarOp::kReduce || inst.op == ScalarOp::kScan) {
    return deepest;
  }
  if (inst.op == ScalarOp::kLoad && stored_.contains(inst.buffer)) return deepest;
  int level = 0;
  for (ValueId id : inst.operands) level = std::max(level, levels_[id]);
  for (int i = 0; i < deepest; ++i) {
    if (step.index && ContainsVar(step.index, vars[i])) level = std::max(level, i + 1);
  }
  return level;
}

void Builder::AddNest(const std::vector<const Step*>& steps, const std::vector<Loop>& loops,
                      const Add& first, const Add& last, Block& out) {
  std::vector<IntExpr> vars;
  for (const Loop& loop : loops) vars.push_back(loop.var);
  std::vector<int> levels;
  for (const Step* step : steps) {
    levels.push_back(LevelOf(*step, vars));
    const ValueId result = step->inst->result;
    if (result < 0) continue;
    SetLevel(result, levels.back());
    // Two nests may compute one step each for itself, and one may stand inside the other.
    if (!computed_.insert(result).second) Alias(result, NewValue());
  }
  Block* at = &out;
  for (size_t level = 0;; ++level) {
    if (level == loops.size()) first(*at);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (levels[i] == static_cast<int>(level)) AddStep(*steps[i], *at);
    }
    if (level == loops.size()) break;
    at = &AddLoop(loops[level], *at);
  }
  last(*at);
}

}  // namespace kiln::schedule
