// Between absl::Status and the C interface's kiln_status.
#pragma once

#include "absl/status/status.h"
#include "kiln/kiln.h"

namespace kiln {

// Null for OK. The caller owns the result.
kiln_status* ToCStatus(const absl::Status& status);
// Consumes `status`.
absl::Status FromCStatus(kiln_status* status);

}  // namespace kiln
