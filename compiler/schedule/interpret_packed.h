// What the interpreter of trees makes of a product of few rows with weights of 4 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/interpret_window.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

// A kMultiplyRows whose INNER is not 0, of those sizes.
absl::Status InterpretPackedRows(const ir::Module& module, const Micro& micro,
                                 const std::vector<int64_t>& sizes, const ReadWindow& read,
                                 const WriteFirst& write);

}  // namespace kiln::schedule
