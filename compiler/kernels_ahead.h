// Kernels that a build compiles: attention and products as nearly every model has them, whose
// kernels take longest to compile, and are the same for all sizes. kernels-ahead (compiler/tools/)
// makes them, and FindOrCompileKernel (compiler/compiler.h) gives them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/base/digest.h"

namespace kiln {

// Of all of them; their objects are PTX.
inline constexpr absl::string_view kKernelsAheadArch = "sm_90a";

// One after another: a list of kernels, each with its key (KernelKeyOf).
std::string KernelAheadText(const Digest& key, absl::string_view object);

// All of such a list, up to where it is damaged; lives as long as that.
struct KernelAhead {
  absl::string_view key;  // Digest::ToHex
  absl::string_view object;
};
std::vector<KernelAhead> ReadKernelsAhead(absl::string_view list);

// The object of that key in such a list; nothing where there is none.
std::optional<absl::string_view> FindKernelAhead(absl::string_view list, const Digest& key);

// This build's list; in the library kiln_kernels_ahead. Lives as long as the process.
absl::string_view KernelsAhead();

}  // namespace kiln
