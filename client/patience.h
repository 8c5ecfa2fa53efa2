// How a caller leaves a call that keeps it waiting.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kiln {

// Asked once every kPatience while a call waits, on the thread of the call. An error ends the call,
// and is its result. Null: the call is waited for.
using Patience = std::function<absl::Status()>;

inline constexpr absl::Duration kPatience = absl::Milliseconds(250);

// Returns early with an error of `patience`.
absl::Status SleepFor(absl::Duration duration, const Patience& patience);

}  // namespace kiln
