// How many threads share a task, and how many lanes each has.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/schedule/device_info.h"
#include "compiler/schedule/lanes_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::ptx {

struct TeamPlan : LanesPlan {  // with all widths
  int team = 1;
  int most_lanes = 1;  // of a thread, of an outer loop, were there points enough for the device
  // Of columns: groups of the team, each with all of the lanes, that take iterations of an inner
  // loop in turns: `shared` of phase number `shared_phase`, the only one with loops. Null where
  // there is one group.
  int groups = 1;
  ir::IntExpr shared;
  size_t shared_phase = 0;
};

// Iterations that a thread of a group should have of the loop.
inline constexpr int64_t kLeastOfGroup = 4;

// Threads of a multiprocessor that hide its memory's latency: each with the accesses of several
// rows of columns, or of a part of a row.
inline constexpr int64_t kThreadsOfColumns = 1024, kThreadsOfRows = 2048;

// The device's multiprocessors, or a usual number of them.
int ComputeUnits(const DeviceInfo& device);

// Points of the loops at the hints of symbols, `without` left out.
int64_t PointsHint(ir::IntContext& ints, const std::vector<ir::IntExpr>& loops,
                   ir::IntExpr without = {});

// Lanes along the loop that PlanLanes chooses, as many a thread as 16 bytes of the smallest type
// that it accesses along them, where the loop's extent allows. Then teams: of a loop over rows, as
// few threads as give each some 32 elements of a row (a warp or a part of one for short rows, up to
// a block of 1024 where there are fewer rows than the device has multiprocessors), of rank 1 twice
// as many and of rank 2 half; else what covers the loop, up to a block of 256.
//
// Where these are too few for the device, and reduce over loops of one phase, groups of
// neighbouring threads, as few as read lines of 128 bytes, share those: what they reduce is then
// reduced in shared memory.
//
// Source of the figures: sums of columns of eleven sizes on an H100, by blocks of 64 to 512
// threads: 8 threads of 16 bytes beside each other, 32 groups of them, and as few parts of a column
// as give each multiprocessor 1024 threads were within 3 % of the best of all. Measured on an H200,
// rows in 128 to 512 threads with 16 to 64 elements each were within a few percent of each other,
// 1024 threads up to a quarter slower; one 16-byte access of each tensor a thread was best for
// element-wise kernels.
TeamPlan PlanTeam(ir::IntContext& ints, const Nest& nest, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
