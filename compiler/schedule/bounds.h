// What index expressions of a tree can reach.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// The variables around a place, outermost first: of loops, with their range, and of `let`, with
// their value.
struct Scope {
  struct Entry {
    ir::IntExpr var;
    ir::IntExpr begin, end;  // of a loop; null for a `let`
    ir::IntExpr step;
    ir::IntExpr value;  // of a `let`
  };
  std::vector<Entry> entries;
  std::vector<std::pair<ir::IntExpr, ir::IntExpr>>
      less;  // what branches around know: first < second
};

// What is wrong with reading or writing `count` elements from `index` on, of `size` that there are;
// nothing where ranges prove it inside. What they cannot prove is evaluated with symbols at their
// hints, at corners and random points of the loops: a legal access never fails, one that is outside
// at a small place may pass.
std::optional<std::string> FindOutside(ir::IntContext& ints, const Scope& scope, ir::IntExpr index,
                                       ir::IntExpr count, ir::IntExpr size);

}  // namespace kiln::schedule
