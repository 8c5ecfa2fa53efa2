#include "compiler/codegen/cpp/contraction.h"

#include "compiler/codegen/cpp/loops.h"

namespace kiln::codegen::cpp {

absl::StatusOr<EmittedKernel> EmitContraction(ir::Module& module, const ir::Kernel& kernel,
                                              VectorIsa isa, const DeviceInfo& device) {
  return EmitLoops(module, kernel, isa);
}

}  // namespace kiln::codegen::cpp
