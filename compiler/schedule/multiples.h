// Which numbers the variables of a tree are multiples of.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// Told the loops and lets around a place, from the outermost on.
class Multiples {
 public:
  void Enter(const For& loop) { loops_[loop.var] = {loop.begin, loop.step}; }
  void Enter(const Let& let) { loops_[let.var] = {let.value, ir::IntExpr()}; }

  // Whether `e` is a multiple of `n` wherever the place is reached; false where it is not known.
  bool Is(ir::IntContext& ints, ir::IntExpr e, int64_t n) const;

 private:
  struct Range {
    ir::IntExpr first, step;  // no step where there is one value
  };
  absl::flat_hash_map<ir::IntExpr, Range> loops_;
};

}  // namespace kiln::schedule
