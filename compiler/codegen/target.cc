#include "compiler/codegen/target.h"

#include "proto/base/status_macros.h"

namespace kiln::codegen {

absl::StatusOr<EmittedKernel> Target::Emit(ir::Module& module, const ir::Kernel& kernel) const {
  KILN_ASSIGN_OR_RETURN(schedule::Tree tree, Schedule(module, kernel));
  return Print(module, tree);
}

}  // namespace kiln::codegen
