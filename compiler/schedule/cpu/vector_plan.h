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
  // Where != 0: rows and lanes are walked in blocks of this many lanes, because some accesses are
  // contiguous along the last of the other outer loops, which `row_var` names.
  int block = 0;
  ir::IntExpr row_var;
};

// PlanLanes with as many lanes as suit the instructions and the body.
VectorPlan PlanVectors(ir::IntContext& ints, const Nest& nest, VectorIsa isa);

}  // namespace kiln::schedule::cpu
