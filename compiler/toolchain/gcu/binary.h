// The binary of GCU programs, as proto/gcu/README.md has it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/toolchain/gcu/isa.h"

namespace kiln::gcu {

// INVALID_ARGUMENT where Verify says so. Equal modules have equal binaries.
absl::StatusOr<std::string> Encode(const Module& module);

// Any bytes may be given: INVALID_ARGUMENT for all that is not a binary of a module that Verify
// accepts.
absl::StatusOr<Module> Decode(absl::string_view binary);

}  // namespace kiln::gcu
