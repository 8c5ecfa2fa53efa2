// Windows over places whose channels lie side by side in memory (channels last): lanes are
// channels, so that no vector crosses the border of the image, and each tap of the window is a
// vector.
#pragma once

#include <optional>

#include "compiler/schedule/cpu/vector_plan.h"
#include "compiler/schedule/nest.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule::cpu {

// For reductions over windows of known size whose loads and stores are contiguous along the last
// outer loop: depthwise convolutions, pooling. What does not move with the window's place, as
// weights, is read once a task and kept. Masks become the part of the window that is inside; a
// window that is wholly so is unrolled. None for others, and where what is masked away would count
// in the result.
std::optional<Tree> ScheduleChannelWindows(ir::Module& module, const ir::Kernel& kernel,
                                           const Nest& nest, VectorIsa isa);

}  // namespace kiln::schedule::cpu
