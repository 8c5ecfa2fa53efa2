// Reductions over windows of which a part lies outside of what they are windows on.
#pragma once

#include <optional>

#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

// That a reduction has the result that it has over the iterations whose masked loads read
// something; of others, where there are some, `once` (for argmax and argmin as iteration 0) where
// it is set.
struct InsidePart {
  std::optional<double> once;
};

// Nothing where what is masked away counts otherwise. REQUIRES: `reduce` is one of the phase's, of
// whose masks all are true in those iterations and none in others.
std::optional<InsidePart> FindInsidePart(const NestPhase& phase, const ir::Inst& reduce);

}  // namespace kiln::schedule::cpu
