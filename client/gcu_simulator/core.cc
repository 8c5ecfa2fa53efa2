#include "client/gcu_simulator/core.h"

namespace kiln::gcu_simulator {
namespace {

std::string Describe(const Tile& tile) {
  std::string text = "a tile of ";
  for (int d = 0; d < tile.rank; ++d) {
    text += (d > 0 ? "x" : "") + std::to_string(tile.extents[d]);
  }
  return text + (tile.rank == 0 ? "one element" : " elements") + " at " +
         std::to_string(tile.address);
}

std::optional<Fault> CheckPlace(const Core& core, const Tile& tile) {
  if (tile.space != Space::kL1) {
    return Misfit(Describe(tile) + " is not in L1");
  }
  uint64_t begin = 0, end = 0;
  tile.Range(begin, end);
  if (end > core.l1.size()) {
    return Fault{FaultCode::kBounds, Describe(tile) + " is not inside of L1, which has " +
                                         std::to_string(core.l1.size()) + " bytes"};
  }
  return std::nullopt;
}

}  // namespace

Tiles TilesOf(const Core& core, const Instruction& instruction) {
  Tiles tiles;
  size_t at = 0;
  for (const char* letter = RowOf(instruction.code).operands; *letter != 0; ++letter) {
    if (*letter == 'I' || *letter == 'L' || *letter == 'M') continue;
    const uint8_t number = instruction.registers[at++];
    if (*letter == 'D' || *letter == 'T' || *letter == 'C') tiles.push_back(&core.tiles[number]);
  }
  return tiles;
}

std::optional<Fault> ReadL1(Core& core, const Tile& tile, const uint8_t*& data) {
  if (auto fault = CheckPlace(core, tile)) return fault;
  data = core.l1.data() + tile.address;
  // Mostly all from its first to its last byte is as it should be.
  uint64_t begin = 0, end = 0;
  tile.Range(begin, end);
  if (core.defined.HasAll(begin, end - begin) && !core.being_written.HasAny(begin, end - begin)) {
    return std::nullopt;
  }
  bool defined = true, busy = false;
  ForEachRun(tile, [&](const Run& run) {
    defined &= core.defined.HasAll(run.begin, run.bytes);
    busy |= core.being_written.HasAny(run.begin, run.bytes);
  });
  if (busy) {
    return Fault{FaultCode::kRace, Describe(tile) + " is read while a copy writes to it"};
  }
  if (!defined) return Fault{FaultCode::kPoison, Describe(tile) + " was not written before"};
  return std::nullopt;
}

std::optional<Fault> WriteL1(Core& core, const Tile& tile, uint8_t*& data) {
  if (auto fault = CheckPlace(core, tile)) return fault;
  if (HasTwice(tile)) {
    return Misfit(Describe(tile) + " is written and has an element twice");
  }
  bool busy = false;
  ForEachRun(tile, [&](const Run& run) {
    busy |= core.being_written.HasAny(run.begin, run.bytes) ||
            core.being_read.HasAny(run.begin, run.bytes);
    core.defined.Add(run.begin, run.bytes);
  });
  if (busy) {
    return Fault{FaultCode::kRace, Describe(tile) + " is written while a copy uses it"};
  }
  data = core.l1.data() + tile.address;
  return std::nullopt;
}

}  // namespace kiln::gcu_simulator
