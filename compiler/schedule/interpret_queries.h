// What the interpreter of trees makes of an attention of few queries.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/interpret_window.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// A kAttend or kAttendMasked of those sizes.
absl::Status InterpretFewQueries(const ir::Module& module, const Micro& micro,
                                 const std::vector<int64_t>& sizes, const ReadWindow& read,
                                 const WriteFirst& write);

}  // namespace kiln::schedule
