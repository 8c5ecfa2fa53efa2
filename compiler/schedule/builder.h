// What the schedulers of this folder build trees with.
#pragma once

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// A loop to be made.
struct Loop {
  ir::IntExpr var, begin, end;
  Binding binding = Binding::kSerial;
  int width = 1;
  ir::IntExpr step;  // null: 1
};

class Builder {
 public:
  // `nest` outlives the builder.
  Builder(ir::Module& module, const ir::Kernel& kernel, const Nest& nest);

  Tree& tree() { return tree_; }
  ir::IntContext& ints() { return ints_; }

  ir::ValueId NewValue() { return tree_.num_values++; }
  // Opens a new one at the end of `out`.
  AllocId Open(Alloc alloc, Block& out);
  // All of the loop of `var` that runs here.
  Loop Whole(ir::IntExpr var, Binding binding = Binding::kSerial, int width = 1);
  // Appends the loop and returns its body, which is good until `out` grows.
  Block& AddLoop(const Loop& loop, Block& out);
  // The same over [begin, end) in steps, with a new variable below `extent`.
  Block& AddSteps(ir::IntExpr& var, ir::IntExpr extent, ir::IntExpr begin, ir::IntExpr end,
                  ir::IntExpr step, Binding binding, Block& out);
  void AddLet(ir::IntExpr var, ir::IntExpr value, Block& out);
  // A variable that is `value`, for `0 <= value <= most`: a new one, or `value` where it is one.
  ir::IntExpr Let(ir::IntExpr value, ir::IntExpr most, Block& out);
  // Tasks that take runs of `extent` iterations, whole units each but for the last: at most
  // kTasksPerThread a thread, of all `copies` of the loop that stand side by side. Returns a task's
  // body and sets the run's begin and end, which are good in it.
  Block& AddTaskRuns(ir::IntExpr extent, int64_t unit, ir::IntExpr copies, ir::IntExpr& begin,
                     ir::IntExpr& end, Block& out);
  void AddStep(const Step& step, Block& out);
  void AddLoad(ir::ValueId result, DType dtype, AllocId from, ir::IntExpr index, Block& out);
  void AddStore(ir::ValueId value, DType dtype, AllocId to, ir::IntExpr index, Block& out);
  // Later steps that use or make `id` use or make `same` instead.
  void Alias(ir::ValueId id, ir::ValueId same) { alias_[id] = same; }
  ir::ValueId Resolve(ir::ValueId id) const;
  bool IsStored(ir::BufferId buffer) const { return stored_.contains(buffer); }
  void MarkStreamed(absl::flat_hash_set<ir::BufferId> buffers) { streamed_ = std::move(buffers); }

  // How many of `vars`, the variables of loops from the outermost on, stand around a step where it
  // is done as seldom as it may be. SetLevel says so for values that come from elsewhere.
  int LevelOf(const Step& step, const std::vector<ir::IntExpr>& vars) const;
  void SetLevel(ir::ValueId value, int level) {
    if (static_cast<size_t>(value) >= levels_.size()) levels_.resize(tree_.num_values, 0);
    levels_[value] = level;
  }
  int LevelOf(ir::ValueId value) const { return levels_[value]; }

  // `loops` with each of `steps` at its level; in the last of them `first` before those that stand
  // there and `last` after.
  using Add = std::function<void(Block&)>;
  void AddNest(const std::vector<const Step*>& steps, const std::vector<Loop>& loops,
               const Add& first, const Add& last, Block& out);

 private:
  ir::IntContext& ints_;
  const Nest& nest_;
  Tree tree_;
  std::vector<int> levels_;  // by ValueId
  absl::flat_hash_map<ir::ValueId, ir::ValueId> alias_;
  absl::flat_hash_set<ir::ValueId> computed_;  // by AddNest
  absl::flat_hash_set<ir::BufferId> stored_, streamed_;
};

}  // namespace kiln::schedule
