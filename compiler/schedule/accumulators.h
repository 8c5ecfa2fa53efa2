// The accumulators of the reductions and scans of one phase, as the scheduler of loops opens, feeds
// and closes them.
//
// Sums of many floats are added in blocks: the loop at block_level() is walked in pieces, each is
// summed by itself and folded into a cascade. So the rounding error grows with the logarithm of the
// number of terms, as ATen's does, not with the number (Higham, "The accuracy of floating point
// summation", 1993).
#pragma once

#include <vector>

#include "compiler/schedule/builder.h"
#include "compiler/schedule/lanes_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule {

class Accumulators {
 public:
  // `lanes_kept`: lanes are of an outer loop, so that each has a result of its own.
  Accumulators(Builder& builder, const Nest& nest, bool lanes_kept)
      : builder_(builder), nest_(nest), lanes_kept_(lanes_kept) {}

  // Of the loop of `var` only one iteration in `among` is made here.
  void Share(ir::IntExpr var, int64_t among) {
    shared_ = var;
    among_ = among;
  }

  // Opens them. `loops` are those around the phase's steps below a row, outermost first; those
  // before `base` are not reduced over. `lanes` are those of the phase.
  void Open(const NestPhase& phase, const std::vector<ir::IntExpr>& loops, int base, Lanes lanes,
            Block& out);

  // The index of the loop that is walked in blocks, and their length in values of its variable; -1
  // where none is.
  int block_level() const { return block_level_; }
  int64_t block_length() const { return block_length_; }
  // At the start and at the end of each block.
  void BeginBlock(Block& out);
  void EndBlock(Block& out);

  // Takes in the operand of a `reduce` or a `scan` of the phase; a scan has its result there.
  void Add(const Step& step, Block& out);

  // Gives the results their values.
  void Close(Block& out);

 private:
  struct Accumulator {
    const ir::Inst* inst;
    AllocId total, part;  // `part`: of the block under way, -1 where there are no blocks
  };

  void PlanBlocks(const std::vector<ir::IntExpr>& loops, int base);
  int64_t StepOf(ir::IntExpr loop) const;
  int64_t Steps(ir::IntExpr loop, int64_t extent) const;
  Alloc Describe(const ir::Inst& reduce) const;

  Builder& builder_;
  const Nest& nest_;
  const bool lanes_kept_;
  Lanes lanes_;
  ir::IntExpr shared_;
  int64_t among_ = 1;
  std::vector<Accumulator> open_;
  ir::IntExpr number_;  // of the inner point in the phase's row-major order
  int block_level_ = -1;
  int64_t block_length_ = 0;
};

}  // namespace kiln::schedule
