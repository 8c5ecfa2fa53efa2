// Reads the textual form that print.h writes.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// INVALID_ARGUMENT "line 12: ..." for text that is not a module. The result is not verified yet.
absl::StatusOr<Module> Parse(absl::string_view text);

}  // namespace kiln::ir
