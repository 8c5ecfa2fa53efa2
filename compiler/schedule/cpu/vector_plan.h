// Which loop of a kernel becomes vector lanes.
#pragma once

#include "compiler/schedule/device_info.h"
#include "compiler/schedule/lanes_plan.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

enum class VectorIsa : uint8_t { kBaseline, kAvx2, kAvx512 };
VectorIsa IsaOf(const DeviceInfo& device);
int VectorBytes(VectorIsa isa);

struct VectorPlan : LanesPlan {
  // Where not null: rows and lanes are walked in tiles, because some accesses are contiguous along
  // this one of the other outer loops.
  ir::IntExpr row_var;
};

// PlanLanes with as many lanes as suit the instructions and the body.
VectorPlan PlanVectors(ir::IntContext& ints, const Nest& nest, VectorIsa isa);

}  // namespace kiln::schedule::cpu
