// What is done with a product's sums, and what of it before they wait in shared memory
// (prelude_sums.inc.h).
#pragma once

#include <optional>
#include <vector>

#include "compiler/schedule/tree.h"

namespace kiln::codegen::ptx {

struct SumsWork {
  std::vector<const schedule::Compute*> steps;  // all, in order
  // What waits of a pair of columns in place of their sums, rounded to 16 bits; kNoValue: they do.
  ir::ValueId waiting = ir::kNoValue;

  // The steps that make `waiting` of sums; those that make what is stored, from `waiting` or sums
  // on, with the stores.
  std::vector<const schedule::Compute*> StepsOfWaiting() const;
  std::vector<const schedule::Compute*> StepsOfStores() const;
};

// Of the loop over a tile's columns, for a row `row`; `is_ragged`: columns may be past the last
// one. None where it has more than steps. What is rounded to 16 bits waits if nothing else needs
// the sums, and if it takes few instructions that need nothing of the row: they are printed for
// each of a thread's sums. Borrows the loop.
std::optional<SumsWork> FindSumsWork(const schedule::For& columns, ir::IntExpr row, bool is_ragged);

// Whether the step loads from a buffer what it would whatever the others compute.
bool IsPlainLoad(const schedule::Compute& step);

}  // namespace kiln::codegen::ptx
