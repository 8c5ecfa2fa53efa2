// Reads the textual form that print.h writes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/schedule/tree.h"

namespace kiln::schedule {

struct Scheduled {
  ir::Module module;
  // One for each `schedule` of the text. In its place the module has a kernel that
  // does nothing and names the same buffers.
  std::vector<Tree> trees;
};

// INVALID_ARGUMENT "line 12: ..." for text that is none, within the bounds of ir::Parse. The result
// is not verified yet.
absl::StatusOr<Scheduled> Parse(absl::string_view text);

}  // namespace kiln::schedule
