#include "compiler/schedule/multiples.h"

#include <algorithm>

namespace kiln::schedule {

using ir::IntExpr;
using ir::IntKind;

bool Multiples::Is(ir::IntContext& ints, IntExpr e, int64_t n) const {
  if (ints.Mod(e, n).is_const(0)) return true;
  const auto is = [&](IntExpr part) { return Is(ints, part, n); };
  switch (e.kind()) {
    case IntKind::kVar: {
      const auto range = loops_.find(e);
      return range != loops_.end() && is(range->second.first) &&
             (!range->second.step || is(range->second.step));
    }
    case IntKind::kAdd:
    case IntKind::kMin:
    case IntKind::kMax:
      return std::all_of(e.operands().begin(), e.operands().end(), is);
    case IntKind::kMul:
      return std::any_of(e.operands().begin(), e.operands().end(), is);
    default:
      return false;
  }
}

}  // namespace kiln::schedule
