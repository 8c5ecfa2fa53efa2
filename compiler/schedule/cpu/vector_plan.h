// Which loop of a kernel becomes vector lanes.
#pragma once

#include <string>
#include <vector>

#include "compiler/schedule/device_info.h"
#include "compiler/schedule/nest.h"

namespace kiln::schedule::cpu {

enum class VectorIsa : uint8_t { kBaseline, kAvx2, kAvx512 };
VectorIsa IsaOf(const DeviceInfo& device);
int VectorBytes(VectorIsa isa);

// The lanes of a loop; a null variable means scalar code.
struct Lanes {
  ir::IntExpr var;
  int width = 1;
};

struct VectorPlan {
  // True: `lanes` is one of the outer loops and holds for all phases. False: each phase with inner
  // loops has its own.
  bool outer = false;
  Lanes lanes;
  std::vector<Lanes> phase_lanes;  // where !outer; one a phase
  // Where != 0: rows and lanes are walked in blocks of this many lanes, because some accesses are
  // contiguous along the last of the other outer loops, which `row_var` names.
  int block = 0;
  ir::IntExpr row_var;
  std::string reason;  // for people
};

// By counting, for each candidate, the accesses that would be contiguous, uniform or scattered,
// at the hints of symbols.
VectorPlan PlanVectors(ir::IntContext& ints, const Nest& nest, VectorIsa isa);

}  // namespace kiln::schedule::cpu
