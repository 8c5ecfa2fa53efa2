#include "proto/base/current_trace.h"

#include <cstdlib>

namespace kiln {
namespace {

thread_local TraceContext t_trace;

TraceContext FromEnvironment() {
  const char* text = std::getenv("TRACEPARENT");
  return text == nullptr ? TraceContext{} : ParseTraceparent(text);
}

}  // namespace

TraceContext CurrentTrace() {
  if (t_trace.valid()) return t_trace;
  static const TraceContext environment = FromEnvironment();
  return environment;
}

void SetThreadTrace(absl::string_view traceparent) {
  t_trace = ParseTraceparent(traceparent);
}

}  // namespace kiln
