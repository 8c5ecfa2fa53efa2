// Copies of buffers from L3 to L2 that a launch makes beside its stages, byte by byte.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/gcu/code.h"
#include "compiler/codegen/gcu/stage.h"
#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/preload.h"

namespace kiln::codegen::gcu {

// A part of a buffer that one core copies while a stage runs.
struct BesideCopy {
  CoreSteps by;
  ir::BufferId buffer = -1;
  schedule::gcu::PreloadPart part;
  int64_t piece_bytes = 0;  // in each step
  int token = 0;
};

// Appends the pieces that belong to the step whose number is in register `next_step`, less one. All
// copies are by one core. By buffer: where it lies in L3, and in L2.
void AppendBesideCopies(const std::vector<BesideCopy>& copies, int next_step,
                        const std::vector<Placement>& in_l3, const std::vector<Placement>& in_l2,
                        Code& code);

// Appends copies of all of these buffers, of each a part by each core, and waits for them.
// REQUIRES: schedule::gcu::DenseBytes of each.
void AppendWholeCopies(const std::vector<ir::BufferId>& buffers, const ir::Module& module,
                       const std::vector<Placement>& in_l3, const std::vector<Placement>& in_l2,
                       int cores, Code& code);

}  // namespace kiln::codegen::gcu
