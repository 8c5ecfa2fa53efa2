#include "compiler/codegen/target.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace kiln::codegen {

absl::StatusOr<schedule::Tree> Target::Schedule(ir::Module& module,
                                                const ir::Operation& operation) const {
  if (const auto* kernel = std::get_if<ir::Kernel>(&operation)) {
    return ScheduleKernel(module, *kernel);
  }
  if (const auto* repeat = std::get_if<ir::Repeat>(&operation)) {
    return ScheduleRepeat(module, *repeat);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("library step '", NameOf(operation), "' has no schedule"));
}

absl::StatusOr<schedule::Tree> Target::ScheduleRepeat(ir::Module&, const ir::Repeat& repeat) const {
  return absl::UnimplementedError(
      absl::StrCat("repeat @", repeat.name, ": target ", name(), " runs no kernels tile by tile"));
}

absl::StatusOr<EmittedKernel> Target::Emit(ir::Module& module,
                                           const ir::Operation& operation) const {
  KILN_ASSIGN_OR_RETURN(schedule::Tree tree, Schedule(module, operation));
  return Print(module, tree);
}

}  // namespace kiln::codegen
