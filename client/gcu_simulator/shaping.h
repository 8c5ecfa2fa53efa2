// Vector instructions that are not element by element: fills, reductions, sums along an axis.
#pragma once

#include <optional>

#include "client/gcu_simulator/core.h"

namespace kiln::gcu_simulator {

bool IsShaping(Code code);
// REQUIRES: IsShaping; `tiles` are the instruction's.
std::optional<Fault> RunShaping(Core& core, const Instruction& instruction, const Tiles& tiles);

}  // namespace kiln::gcu_simulator
