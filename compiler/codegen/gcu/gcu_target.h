// The target gcu: programs for an accelerator with explicit on-chip memory (proto/gcu/README.md),
// and for what it lacks, kernels of its host.
#pragma once

#include "compiler/codegen/target.h"

namespace kiln::codegen {

TargetKind GcuTargetKind();

}  // namespace kiln::codegen
