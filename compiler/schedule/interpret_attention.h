// What the micro-kernels attend_tile and attend_gradients (micro.h) compute.
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

// The same; `add`: to an element of the window that it adds to.
absl::Status InterpretGradients(
    const std::vector<int>& constants, const std::vector<int64_t>& sizes,
    const std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t index)>& read,
    const std::function<absl::Status(size_t window, int64_t index, double value)>& write,
    const std::function<absl::Status(int64_t index, double value)>& add);

}  // namespace kiln::schedule
