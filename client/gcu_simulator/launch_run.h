// A launch from its first instruction to its last.
#pragma once

#include <optional>

#include "client/gcu_simulator/copy.h"
#include "client/gcu_simulator/machine.h"

namespace kiln::gcu_simulator {

// Adds to `report`, which is empty. A fault names the kernel and, where it is one core's, core and
// instruction.
std::optional<Fault> RunLaunch(const Profile& profile, Memories memories, const Launch& launch,
                               bool with_spans, Report& report);

}  // namespace kiln::gcu_simulator
