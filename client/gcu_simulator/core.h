// One core while a launch runs: its registers, its L1 and its unfinished copies.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "client/gcu_simulator/byte_set.h"
#include "client/gcu_simulator/fault.h"
#include "client/gcu_simulator/machine.h"
#include "client/gcu_simulator/program.h"
#include "client/gcu_simulator/tile.h"
#include "client/gcu_simulator/zeroed_array.h"

namespace kiln::gcu_simulator {

// A copy that was issued. What it moves is moved then; when it is done is known once its engine has
// begun it.
struct PendingCopy {
  int token = 0;
  uint32_t instruction = 0;
  std::vector<Tile> read, written;
  int64_t issued_ps = 0, done_ps = -1;  // -1: not begun
  int64_t l3_lines = 0, l2_lines = 0, bytes = 0;
};

struct Core {
  explicit Core(uint64_t l1_bytes)
      : l1(l1_bytes), defined(l1_bytes), being_written(l1_bytes), being_read(l1_bytes) {}

  int number = 0;
  std::array<int64_t, KILN_GCU_SCALAR_REGISTERS> scalars{};
  std::array<Tile, KILN_GCU_TILE_REGISTERS> tiles{};
  ZeroedArray<uint8_t> l1;
  ByteSet defined, being_written, being_read;  // of L1; the last two by copies not waited for
  std::deque<PendingCopy> copies;              // not waited for, in the order of issue
  size_t begun = 0;                            // of `copies`, those that the engine has begun
  int64_t time_ps = 0, engine_free_ps = 0;
  uint32_t at = 0;  // the next instruction
  enum class State : uint8_t { kRuns, kWaits, kAtBarrier, kHalted } state = State::kRuns;
  int waits_for = -1;  // a token; -1: all

  const PendingCopy* FindCopy(int token) const {
    for (const PendingCopy& copy : copies) {
      if (copy.token == token) return &copy;
    }
    return nullptr;
  }
};

// Checks that the tile lies in the core's L1, is defined and no copy writes it, and gives its first
// byte. `data` points to the element at index 0.
std::optional<Fault> ReadL1(Core& core, const Tile& tile, const uint8_t*& data);
// The same for a tile that is written: that no copy reads or writes it, and no element is there
// twice. Its elements count as defined from then on.
std::optional<Fault> WriteL1(Core& core, const Tile& tile, uint8_t*& data);

// The instruction's tiles, in the order of its operands.
using Tiles = std::vector<const Tile*>;
Tiles TilesOf(const Core& core, const Instruction& instruction);

// Vector and matrix instructions; `cycles` and `macs` are what they took. REQUIRES: of that unit;
// `tiles` are the instruction's, their Range is one, and they have no more than kMostElements.
std::optional<Fault> RunVector(Core& core, const Instruction& instruction, const Tiles& tiles,
                               int64_t& cycles);
std::optional<Fault> RunMatrix(Core& core, const Profile& profile, const Instruction& instruction,
                               const Tiles& tiles, int64_t& cycles, int64_t& macs);

}  // namespace kiln::gcu_simulator
