// What the micro-kernels attend_tile and attend_gradients (micro.h) compute.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "compiler/schedule/interpret_window.h"

namespace kiln::schedule {

// With the micro-kernel's constants and the values of its sizes.
absl::Status InterpretAttention(const std::vector<int>& constants,
                                const std::vector<int64_t>& sizes, const ReadWindow& read,
                                const WriteWindow& write);

// The same; `add`: to an element of the window that it adds to.
absl::Status InterpretGradients(
    const std::vector<int>& constants, const std::vector<int64_t>& sizes, const ReadWindow& read,
    const WriteWindow& write, const std::function<absl::Status(int64_t index, double value)>& add);

}  // namespace kiln::schedule
