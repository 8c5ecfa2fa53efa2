// One kernel as instructions of all cores: tiles dealt out to them, loads that run ahead, vector
// and matrix instructions in L1, stores.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/codegen/gcu/code.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/form.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::codegen::gcu {

// Where a buffer lies, and how.
struct Placement {
  Space space = Space::kL3;
  int argument = -1;   // in L3: the launch's argument with its address
  int64_t offset = 0;  // in L2: bytes from the launch's own memory on
  std::vector<ir::IntExpr> sizes, strides;  // elements
  DType dtype = DType::kF32;
};

// Appends the kernel to `code`. `placements` has those of its buffers, by buffer. Bytes of L1 that
// it takes; UNIMPLEMENTED where the machine lacks something, or L1 is too small.
absl::StatusOr<int64_t> AppendStage(ir::Module& module, const schedule::gcu::Form& form,
                                    const schedule::gcu::Tiling& tiling,
                                    const std::vector<Placement>& placements,
                                    const schedule::gcu::Machine& machine, Code& code);

}  // namespace kiln::codegen::gcu
