// The phases of a nest below a row, as the schedulers of loops of any target build them: loops,
// accumulators, each instruction as far outside as it may stand, and values kept between phases.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/schedule/accumulators.h"
#include "compiler/schedule/builder.h"
#include "compiler/schedule/kept_values.h"
#include "compiler/schedule/lanes_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule {

class RowScheduler {
 public:
  // `plan` has the lanes' widths. It and `nest` outlive this.
  RowScheduler(Builder& builder, const Nest& nest, const LanesPlan& plan);
  virtual ~RowScheduler() = default;

  // Loops of a phase below a row, outermost first; the lanes' loop is among them.
  std::vector<ir::IntExpr> PhaseLoops(size_t phase) const;
  // All phases, where lanes are of inner loops.
  void AddPhases(Block& out);
  // All phases in a loop of the plan's outer lanes, after what is the same for all lanes of a row.
  void AddLanesBody(const Loop& lanes, Block& out);
  // Of the inner loop of `var`, which has no lanes, each `step`-th iteration from `first` on is
  // made here.
  void Share(ir::IntExpr var, ir::IntExpr first, int64_t step);
  // Keeps a row of each of `values` that the lanes allow in `space`, opened in `out`: instructions
  // that compute it again read it instead. False where there is none.
  bool Keep(const std::vector<KeptValue>& values, Space space, Block& out);

 protected:
  // One instruction, at the place where it stands.
  virtual void AddStep(const NestPhase& phase, const Step& step, Block& out);
  // What is the same for all of the plan's outer lanes in a row; says of all steps where they
  // stand.
  void AddAboveLanes(Block& out);
  void AddPhase(size_t number, Block& out);
  // Of the phase that is being made.
  const Lanes& lanes() const { return lanes_; }

  Builder& builder_;
  ir::IntContext& ints_;

 private:
  void AddLevel(const NestPhase& phase, const std::vector<ir::IntExpr>& loops,
                const std::vector<int>& levels, int level, Block& out);
  void AddReduceOfOne(const Step& step, Block& out);

  const Nest& nest_;
  const LanesPlan& plan_;
  Accumulators accumulators_;
  Lanes lanes_;
  ir::IntExpr shared_, first_;
  int64_t step_ = 1;
  struct KeptRow {
    AllocId alloc;
    bool stored;  // by this instruction; else loaded in its place
  };
  absl::flat_hash_map<const ir::Inst*, KeptRow> kept_;
};

}  // namespace kiln::schedule
