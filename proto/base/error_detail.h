// Typed details on absl::Status: the node at fault, what was expected, when to try again.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace v1 {
class ErrorDetail;
}

// Returns `status` with `detail` attached; a detail that is there already stays (the innermost hop
// knows best). No effect on an OK status.
absl::Status WithDetail(absl::Status status, const v1::ErrorDetail& detail);
std::optional<v1::ErrorDetail> GetDetail(const absl::Status& status);

// INVALID_ARGUMENT "node 'add_3' (aten.add.Tensor): <what>; expected <expected>" with its detail.
absl::Status BadGraphError(absl::string_view node, absl::string_view op, absl::string_view what,
                           absl::string_view expected);

// The same code, details kept, with "<prefix>: " before the message.
absl::Status Annotate(const absl::Status& status, absl::string_view prefix);

}  // namespace kiln
