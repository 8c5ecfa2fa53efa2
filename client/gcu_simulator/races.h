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
  // Of everything since the last call of Clear, but what Shorten has dropped.
  std::optional<Conflict> FindConflict();
  void Clear();
  const std::vector<AccessedRun>& runs() const { return runs_; }

 private:
  // A log is shortened when it has twice what the last time left of it, so that a program that
  // copies much between two barriers takes memory by where it copies, not by how often: runs of one
  // core that meet become one.
  void Shorten();

  std::vector<AccessedRun> runs_;
  std::optional<Conflict> conflict_;  // the first one that Shorten has found
  size_t limit_ = kFewRuns;           // of runs_, before it is shortened

  static constexpr size_t kFewRuns = size_t{1} << 16;
  // Of more than these that do not meet (64 MiB) all but a conflict is dropped: accesses before are
  // then not compared with those after.
  static constexpr size_t kMostRuns = size_t{1} << 21;
};

}  // namespace kiln::gcu_simulator
