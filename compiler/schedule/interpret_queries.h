// What the interpreter of trees makes of an attention of few queries.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/ir/interpret_impl.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// A kAttend or kAttendMasked of those sizes. read(window, i) reads element i of a window, write(i,
// value) stores one of the first; errors are theirs.
absl::Status InterpretFewQueries(
    const ir::Module& module, const Micro& micro, const std::vector<int64_t>& sizes,
    const std::function<absl::StatusOr<ir::Lane>(size_t window, int64_t i)>& read,
    const std::function<absl::Status(int64_t i, ir::Lane value)>& write);

}  // namespace kiln::schedule
