// Which loops of a kernel become lanes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/schedule/nest.h"

namespace kiln::schedule {

// The lanes of a loop; a null variable means scalar code.
struct Lanes {
  ir::IntExpr var;
  int width = 1;
};

struct LanesPlan {
  // True: `lanes` is one of the outer loops and holds for all phases. False: each phase with inner
  // loops has its own.
  bool outer = false;
  Lanes lanes;
  std::vector<Lanes> phase_lanes;  // where !outer; one a phase
  std::string reason;              // for people
};

// What lanes are to the device.
struct LanesTarget {
  int width = 1;
  // Of the pieces of memory that an access of all lanes takes, so that neighbouring lanes share
  // them; 0 where only contiguous lanes are one access.
  int sector_bytes = 0;
  // Of the outer loops, for lanes of these to be better than lanes of inner ones that access
  // neighbours, too.
  int64_t least_points = 0;
};

// By counting, for each candidate, the accesses of `width` neighbouring lanes that would be
// contiguous, uniform, apart or scattered, at the hints of symbols. The plan's widths are left to
// the target.
LanesPlan PlanLanes(ir::IntContext& ints, const Nest& nest, LanesTarget target);

// Of a nest without inner loops whose lanes are of an outer one: another outer loop that something
// is contiguous along which is scattered along the lanes; null where there is none.
ir::IntExpr FindTurnedRows(ir::IntContext& ints, const Nest& nest, const Lanes& lanes);
// Whether `step` loads something contiguous along `rows` and scattered along the lanes, which a
// tile of both may turn.
bool IsTurned(ir::IntContext& ints, const Step& step, ir::IntExpr rows, ir::IntExpr lanes);

}  // namespace kiln::schedule
