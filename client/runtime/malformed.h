// What is wrong with a program as it came, and where.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kiln::runtime {

inline absl::Status Malformed(absl::string_view where, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the artifact's program is malformed: ", where, " ", what));
}

}  // namespace kiln::runtime
