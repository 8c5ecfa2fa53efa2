// What the micro-kernel attend_tile (micro.h) computes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::schedule {

// With the micro-kernel's constants and the values of its sizes; element `index` of its window
// number `window` is read and written.
absl::Status InterpretAttention(
    const std::vector<int>& constants, const std::vector<int64_t>& sizes,
    const std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t index)>& read,
    const std::function<absl::Status(size_t window, int64_t index, double value)>& write);

}  // namespace kiln::schedule
