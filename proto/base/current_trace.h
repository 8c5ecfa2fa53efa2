// The span that this thread's calls to a server belong to.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/base/trace_context.h"

namespace kiln {

// What SetThreadTrace set on this thread, else TRACEPARENT of the environment at the process's
// first call; not valid where there is neither.
TraceContext CurrentTrace();

// A "traceparent" header; anything that is none takes away what was set before.
void SetThreadTrace(absl::string_view traceparent);

}  // namespace kiln
