// The list of targets. What else has to know of a target reads it from here.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/codegen/target.h"

namespace kiln::codegen {

// In this order on the page and in `kilnd --version`.
const std::vector<TargetKind>& Targets();

// By name. UNIMPLEMENTED, with what there is, where this build has no such target.
absl::StatusOr<const TargetKind*> FindTarget(absl::string_view name);

}  // namespace kiln::codegen
