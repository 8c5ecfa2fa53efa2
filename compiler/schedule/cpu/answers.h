// Comparisons whose answer is known for a part of the loops, put into the steps of that part.
#pragma once

#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

using Answers = absl::flat_hash_map<ir::ValueId, bool>;  // of comparisons, by their results

// The integers that steps give, as expressions.
absl::flat_hash_map<ir::ValueId, ir::IntExpr> IndexValues(ir::IntContext& ints,
                                                          absl::Span<const NestPhase> phases);

// The steps of each phase with selects and masks decided, and without what then nobody uses. What
// differs from the kernel's own instructions is made in `insts`.
std::vector<std::vector<Step>> WithAnswers(absl::Span<const NestPhase> phases, Answers answers,
                                           std::deque<ir::Inst>& insts);

}  // namespace kiln::schedule::cpu
