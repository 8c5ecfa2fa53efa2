// Reads the textual form that print.h writes. "//" starts a comment that ends with its line.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/ir/module.h"

namespace kiln::ir {

// INVALID_ARGUMENT "line 12: ..." for text that is not a module or that exceeds the bounds in
// parse_impl.h, which hold for any input. The result is not verified yet.
absl::StatusOr<Module> Parse(absl::string_view text);

}  // namespace kiln::ir
