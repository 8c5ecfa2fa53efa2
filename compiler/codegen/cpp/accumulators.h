// The accumulators of the reductions of one phase, as an emitter of loops opens, feeds and closes
// them.
//
// Sums of many floats are added in blocks: the loop at block_level() is walked in pieces, each is
// summed by itself, and a KCascade of the prelude adds the pieces up. So the rounding error grows
// with the logarithm of the number of terms, as ATen's does, not with the number (Higham, "The
// accuracy of floating point summation", 1993).
#pragma once

#include <string>
#include <vector>

#include "compiler/codegen/cpp/body.h"
#include "compiler/codegen/cpp/nest.h"

namespace kiln::codegen::cpp {

class Accumulators {
 public:
  // `lanes_kept`: lanes are of an outer loop, so that each has a result of its own.
  Accumulators(Body& body, bool lanes_kept) : body_(body), lanes_kept_(lanes_kept) {}

  // Declares them. `loops` are those around the phase's steps below a row, outermost first; those
  // before `base` are not reduced over. The body's lanes are set.
  void Open(const Nest& nest, const NestPhase& phase, const std::vector<ir::IntExpr>& loops,
            int base);

  // The index of the loop that is walked in blocks, and their length in steps of its variable; -1
  // where none is.
  int block_level() const { return block_level_; }
  int64_t block_length() const { return block_length_; }
  // At the start and at the end of each block.
  void BeginBlock();
  void EndBlock();

  // Takes in the operand of a `reduce` of the phase.
  void Add(const Step& step);

  // Defines the results.
  void Close();

 private:
  struct Accumulator {
    const ir::Inst* inst;
    ReduceText text;
    std::string name;
    std::string type;  // of an element
    bool varying;
    std::string cascade;  // its name; empty where there is none
  };

  void PlanBlocks(const std::vector<ir::IntExpr>& loops, int base);
  int64_t Steps(ir::IntExpr loop, int64_t extent) const;
  void AddToBest(const Accumulator& acc, const std::string& operand, bool tail_counts);

  Body& body_;
  const bool lanes_kept_;
  std::vector<Accumulator> open_;
  ir::IntExpr number_;  // of the inner point in the phase's row-major order
  int block_level_ = -1;
  int64_t block_length_ = 0;
};

}  // namespace kiln::codegen::cpp
