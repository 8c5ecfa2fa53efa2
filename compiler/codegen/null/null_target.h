// Target `null`: each kernel as the text of its plainest schedule, which nothing runs. The smallest
// complete target, and so the template for the next one (README.md).
#pragma once

#include "compiler/codegen/target.h"

namespace kiln::codegen {

// Its one architecture is "loop-ir".
TargetKind NullTargetKind();

}  // namespace kiln::codegen
