// Two kernels become one with the phases of both. Private to compiler/fusion.
#pragma once

#include <optional>

#include "compiler/fusion/match_loops.h"
#include "compiler/ir/module.h"

namespace kiln::fusion {

// The phases of `first`, then those of `second`, within the outer loops of the host, which is
// `first` where `first_is_host`; `match` places the other one. Loads that `second` has of what
// `first` stores become the stored value where that is visible. Nothing where one would have to
// read what another outer point stores. Takes the name and adds the origins of both.
std::optional<ir::Kernel> JoinKernels(ir::Module& module, const ir::Kernel& first,
                                      const ir::Kernel& second, bool first_is_host,
                                      const LoopMatch& match);

// Whether two instructions of phases with `a_inner` and `b_inner` touch the same element at the
// same point of equal loops.
bool SameElement(ir::IntContext& ints, const ir::Inst& a, const std::vector<ir::IntExpr>& a_inner,
                 const ir::Inst& b, const std::vector<ir::IntExpr>& b_inner);

}  // namespace kiln::fusion
