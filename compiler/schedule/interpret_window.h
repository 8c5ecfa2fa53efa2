// How the interpreter of trees gives micro-kernels their windows; errors are those of the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::schedule {

// Element `index` of window number `window`.
using ReadWindow = std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t index)>;
using WriteWindow = std::function<absl::Status(size_t window, int64_t index, double value)>;
// Of the first window.
using WriteFirst = std::function<absl::Status(int64_t index, ir::Lane value)>;

}  // namespace kiln::schedule
