// DMA: what a copy moves.
#pragma once

#include <optional>

#include "client/gcu_simulator/core.h"
#include "client/gcu_simulator/memory.h"

namespace kiln::gcu_simulator {

// The memories as a core's copies see them.
struct Memories {
  Memory* l3 = nullptr;
  Memory* l2 = nullptr;
};

// Moves the elements at once and fills in what `copy` reads, writes and counts. The core's L1 is
// taken until the copy is waited for. REQUIRES: an instruction of the unit Dma whose token is free
// and whose tiles are as RunVector wants them.
std::optional<Fault> RunCopy(Core& core, const Memories& memories, const Instruction& instruction,
                             const Tiles& tiles, PendingCopy& copy);

// Frees what the core's first copy with that token has taken of L1, and drops it.
void Retire(Core& core, int token);

}  // namespace kiln::gcu_simulator
