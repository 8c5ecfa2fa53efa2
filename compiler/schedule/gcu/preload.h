// Weights that come to L2 while earlier kernels of a launch compute: L3, which is slow, is then
// busy all the time, and cores share what was loaded once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/machine.h"

namespace kiln::schedule::gcu {

// Bytes of a buffer of known size without gaps; nothing for others.
std::optional<int64_t> DenseBytes(const ir::Buffer& buffer);

// A buffer that comes to L2 before the first tile, and stays.
struct Resident {
  ir::BufferId buffer = -1;
  int64_t bytes = 0;
};
// What kernels that run tile by tile load: by buffer, whether every tile loads the same of it and
// none stores it.
class TileLoads {
 public:
  // `loop`: the kernel's tiled one.
  void Add(const ir::Kernel& kernel, ir::IntExpr loop);
  // Weights that every tile loads, as many as fit `room` bytes of L2, small ones first.
  std::vector<Resident> Residents(const ir::Module& module, int64_t room) const;

 private:
  absl::flat_hash_map<ir::BufferId, bool> same_;
};

// Of L2, what all that a launch keeps there may take: first fit leaves gaps.
int64_t RoomFor(const Machine& machine);
// Seconds in which these come, before the first tile.
double SecondsOf(const std::vector<Resident>& residents, const Machine& machine);

// Those of the version that find room beside what `plan` of it has. Nothing where it is no version
// of tiles.
std::vector<Resident> ResidentsOf(const ir::Module& module, const Version& version,
                                  const L2Plan& plan, const Machine& machine);

// What the copies of one kernel are planned by: seconds, with all candidates in L2.
struct StageTimes {
  double seconds = 0;  // of it
  double alone = 0;    // the same where it loads all candidates itself
  double compute = 0;  // of its slowest core
  double l3 = 0;       // of the channel, for what the kernel itself loads and stores there
  bool loads = true;   // whether copies can be made while it runs
};

// A part of a buffer that is copied while one kernel runs.
struct PreloadPart {
  size_t kernel = 0;
  int64_t begin = 0, bytes = 0;
};

struct Preload {
  ir::BufferId buffer = -1;
  std::vector<PreloadPart> parts;  // in the order of kernels, all before the first use
};

// Buffers that the version's kernels only load, and may find in L2 already: large ones of known
// size that the first kernel does not use.
struct PreloadCandidate {
  ir::BufferId buffer = -1;
  int64_t bytes = 0;
  size_t first_use = 0, last_use = 0;  // kernels
};
std::vector<PreloadCandidate> PreloadCandidates(const ir::Module& module, const Version& version);

// Those of the candidates that find room in L2 beside what `plan` has, and time before they are
// used. They join the plan. `times`: by
// kernel.
std::vector<Preload> PlanPreloads(const ir::Module& module,
                                  std::vector<PreloadCandidate> candidates,
                                  const std::vector<StageTimes>& times, const Machine& machine,
                                  L2Plan& plan);

}  // namespace kiln::schedule::gcu
