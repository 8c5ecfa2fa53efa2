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
};

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
// Source of the figures: measured on an H200, rows in 128 to 512 threads with 16 to 64 elements
// each were within a few percent of each other, 1024 threads up to a quarter slower; one 16-byte
// access of each tensor a thread was best for element-wise kernels.
TeamPlan PlanTeam(ir::IntContext& ints, const Nest& nest, const DeviceInfo& device);

}  // namespace kiln::schedule::ptx
