// What the interpreter of trees makes of the steps of Winograd's convolution.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/interpret_window.h"

namespace kiln::schedule {

// A kWinogradImage and a kWinogradSums of those sizes, whose panels have `width` lanes.
absl::Status InterpretWinogradImage(const std::vector<int64_t>& sizes, const ReadWindow& read,
                                    const WriteFirst& write);
absl::Status InterpretWinogradSums(int64_t width, const std::vector<int64_t>& sizes,
                                   const ReadWindow& read, const WriteFirst& write);

}  // namespace kiln::schedule
