// Kernels that clients find by name in one file: what targets link that have no linker of their own
// (client/runtime/archive.h has the format).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kiln::codegen {

// An object of one kernel: its name and interface, a line each, and its code.
std::string KernelObject(absl::string_view name, absl::string_view interface,
                         absl::string_view code);
bool IsKernelObject(absl::string_view object);

// Of such objects. Modules are `codes`, one for each, or where there are none the objects' own
// code. INTERNAL for what is no such object.
absl::StatusOr<std::string> KernelArchive(absl::Span<const std::string> objects,
                                          absl::Span<const std::string> codes = {});

}  // namespace kiln::codegen
