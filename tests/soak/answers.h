// What clients saw, and which of it is no surprise.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "tests/integration/calls.h"

namespace kiln::soak {

class World;

// A line of a client process (client_process.h).
void TakeLine(World& world, absl::string_view line);

// An error that a client which did nothing wrong saw. Expected are those of a compile whose worker
// was killed twice, of the minute in which its graph is refused, and a full queue's.
void TakeError(World& world, absl::string_view code, absl::string_view reason,
               absl::string_view text);

// The answer to a request of `who`, which may be wrong. Expected is beside these whatever blames
// the request; `leaves`: or that the client itself left.
void TakeAnswer(World& world, absl::string_view who, const integration::Answer& answer,
                bool leaves);

}  // namespace kiln::soak
