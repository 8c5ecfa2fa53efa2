// What a server says that has no room: RESOURCE_EXHAUSTED, and when to come again.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kiln::server {

// "<what>; try again in 1.5s", with REASON_QUEUE_FULL and the time as details.
absl::Status BusyError(absl::string_view what, absl::Duration retry_after);

}  // namespace kiln::server
