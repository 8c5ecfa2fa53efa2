// Kernels that a build compiles: attention as nearly every model has it, whose kernels take longest
// to compile, and are the same for all lengths and heads. kernels-ahead (compiler/tools/) makes
// them, and FindOrCompileKernel (compiler/compiler.h) gives them.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln {

// One after another: a list of kernels, each with its key (KernelKeyOf).
std::string KernelAheadText(const Digest& key, absl::string_view object);

// The object of that key in such a list; nothing where there is none.
std::optional<absl::string_view> FindKernelAhead(absl::string_view list, const Digest& key);

// This build's list; in the library kiln_kernels_ahead. Lives as long as the process.
absl::string_view KernelsAhead();

}  // namespace kiln
