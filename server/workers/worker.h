// `kilnd worker`: the warm process from which those are forked that run the compiler.
#pragma once

#include "absl/types/span.h"

namespace kiln::server {

// Starts the toolchain, then makes a process for each task that the server announces on descriptor
// 3 (server/workers/task_process.h) until the server closes its end; returns the exit code. Runs
// only as a child of the server, whose death ends it. Standard output stays unused.
int RunWorker(absl::Span<char* const> arguments);

}  // namespace kiln::server
