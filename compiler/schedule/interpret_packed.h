// What the interpreter of trees makes of a product of few rows with weights of 4 bits.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/ir/interpret_impl.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// A kMultiplyRows whose INNER is not 0, of those sizes. read(window, i) reads element i of a
// window, write(i, value) stores one of the first; errors are theirs.
absl::Status InterpretPackedRows(
    const ir::Module& module, const Micro& micro, const std::vector<int64_t>& sizes,
    const std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t i)>& read,
    const std::function<absl::Status(int64_t i, ir::Lane value)>& write);

}  // namespace kiln::schedule
