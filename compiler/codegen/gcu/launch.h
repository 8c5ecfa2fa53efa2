// A kernel, or a group of them, as one program of the GCU: a launch.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"
#include "compiler/toolchain/gcu/isa.h"

namespace kiln::codegen::gcu {

// One of the ways in which a launch runs, for sizes that are known at run time only.
struct LaunchVersion {
  schedule::gcu::Version plan;
  schedule::gcu::L2Plan l2;
  std::vector<std::string> reasons;  // how its kernels run, for people
  // Predicted, for typical sizes.
  double seconds = 0;
  std::vector<schedule::gcu::Cost> stages;  // of each kernel, all its tiles
};

struct Launch {
  kiln::gcu::Kernel kernel;           // without a name
  std::vector<ir::BufferId> buffers;  // in L3: its first arguments, in order
  std::vector<int> symbols;           // the arguments after them
  std::vector<LaunchVersion>
      versions;  // in the order in which the program tries them; at least one
};

// What the version takes where each of its kernels is a launch of its own, and sums are made at
// once: seconds, predicted.
// `symbols`: those of its bucket.
double UnfusedSeconds(ir::Module& module, const std::vector<ir::IntExpr>& symbols,
                      const schedule::gcu::Version& version, const schedule::gcu::Machine& machine);

// UNIMPLEMENTED where the machine lacks something, or on-chip memory is too small.
absl::StatusOr<Launch> MakeLaunch(ir::Module& module, const ir::Operation& operation,
                                  const schedule::gcu::Machine& machine);

}  // namespace kiln::codegen::gcu
