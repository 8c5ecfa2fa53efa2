// What the interpreter of trees makes of the steps of Winograd's convolution.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/ir/interpret_impl.h"

namespace kiln::schedule {

// A kWinogradImage and a kWinogradSums of those sizes, whose panels have `width` lanes.
// read(window, i) reads element i of a window, write(i, value) stores one of the first; errors are
// theirs.
using ReadWindow = std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t i)>;
using WriteFirst = std::function<absl::Status(int64_t i, ir::Lane value)>;
absl::Status InterpretWinogradImage(const std::vector<int64_t>& sizes, const ReadWindow& read,
                                    const WriteFirst& write);
absl::Status InterpretWinogradSums(int64_t width, const std::vector<int64_t>& sizes,
                                   const ReadWindow& read, const WriteFirst& write);

}  // namespace kiln::schedule
