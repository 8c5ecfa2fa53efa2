// What cores access in L2 and L3 between two barriers, and whether two of them must not.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/gcu_simulator/tile.h"

namespace kiln::gcu_simulator {

struct AccessedRun {
  uint64_t begin = 0, end = 0;
  int core = 0;
  uint32_t instruction = 0;
  bool writes = false;
};

// Two runs that overlap, of two cores, one of them written.
struct Conflict {
  AccessedRun a, b;
};

class AccessLog {
 public:
  void Add(const Tile& tile, int core, uint32_t instruction, bool writes);
  // Of everything since the last call of Clear.
  std::optional<Conflict> FindConflict();
  void Clear() { runs_.clear(); }

 private:
  std::vector<AccessedRun> runs_;
};

}  // namespace kiln::gcu_simulator
