// What a group's launch keeps in L2, as a picture.
#pragma once

#include <string>
#include <vector>

#include "compiler/ir/module.h"
#include "compiler/schedule/gcu/l2_plan.h"
#include "compiler/schedule/gcu/machine.h"
#include "compiler/schedule/gcu/tiling.h"

namespace kiln::schedule::gcu {

struct PicturedLaunch {
  std::string name;
  std::vector<std::string> kernels;
  std::vector<Cost> costs;  // predicted, of each kernel: their seconds are the widths
  L2Plan plan;
};

// An SVG document: a panel for each launch, time from left to right, places in L2 from the bottom
// up, a rectangle for each buffer while it lives, with its name and size in its title; below it a
// timeline: how long of each kernel's time the busiest core computes, and the channels of L3 and L2
// copy.
std::string PictureL2(const ir::Module& module, const std::vector<PicturedLaunch>& launches,
                      const Machine& machine);

}  // namespace kiln::schedule::gcu
