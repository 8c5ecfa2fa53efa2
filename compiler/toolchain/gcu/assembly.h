// The text of GCU programs. Assemble(Disassemble(module)) is `module` again.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/toolchain/gcu/isa.h"

namespace kiln::gcu {

// INVALID_ARGUMENT with the line and what was expected there.
absl::StatusOr<Module> Assemble(absl::string_view text);

// REQUIRES: Verify. Labels are L0, L1, ... in the order of the instructions that they stand before.
std::string Disassemble(const Module& module);

}  // namespace kiln::gcu
