// Loops of a contraction that are taken as one, and what follows its sums.
#pragma once

#include <functional>
#include <vector>

#include "compiler/schedule/builder.h"
#include "compiler/schedule/cpu/contraction_plan.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// A range of one loop that stands for several, taken as one.
struct FlatRange {
  ir::IntExpr begin, end;
};

// A tile of sums of which the first row is number `first_row`: [row][lane], or, where results are
// stored along rows, [lane][row]; `pitch` elements from one of the first to the next.
struct SumTile {
  AllocId alloc = -1;
  ir::IntExpr first_row;
  int64_t pitch = 0;
};

class FlatLoops {
 public:
  // `nest`, `plan` and `builder` outlive it.
  FlatLoops(const Nest& nest, const ContractionPlan& plan, Builder& builder)
      : ints_(builder.ints()), nest_(nest), plan_(plan), builder_(builder) {}

  // Gives each of `vars` its value at the point number `flat` of all.
  void Decode(ir::IntExpr flat, const std::vector<ir::IntExpr>& vars, Block& out);

  // The last of `vars` over its part of `range`, inside of a loop over the others where there are
  // any; `visit` makes its body from the place in the range and gets where to put it.
  using Visit = std::function<void(const Loop& run, ir::IntExpr place, Block& out)>;
  void AddRuns(const std::vector<ir::IntExpr>& vars, const FlatRange& range, const Visit& visit,
               Block& out);

  // The later phases on `rows` and `lanes` of a tile, vectors along the direction in which the
  // result is contiguous.
  void Finish(const SumTile& tile, const FlatRange& rows, const FlatRange& lanes, Block& out);

 private:
  ir::IntExpr Join(const std::vector<ir::IntExpr>& vars, const std::vector<const Step*>& steps,
                   std::vector<Step>& joined);

  ir::IntContext& ints_;
  const Nest& nest_;
  const ContractionPlan& plan_;
  Builder& builder_;
};

}  // namespace kiln::schedule::cpu
