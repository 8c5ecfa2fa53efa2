// `kilnd worker`: the process that runs the compiler.
#pragma once

#include "absl/types/span.h"

namespace kiln::server {

// Serves frames on descriptor 3 until the server closes its end; returns the exit code. Runs only
// as a child of the server, whose death ends it. Standard output stays unused.
int RunWorker(absl::Span<char* const> arguments);

}  // namespace kiln::server
