// W3C Trace Context, level 1: https://www.w3.org/TR/trace-context/
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace kiln {

// A span's place in a trace. Ids of zeros mean that there is none.
struct TraceContext {
  std::array<uint8_t, 16> trace_id{};
  std::array<uint8_t, 8> span_id{};
  bool sampled = false;

  bool valid() const;
  // 32 lower-case hex digits.
  std::string TraceIdHex() const;
  std::string SpanIdHex() const;  // 16
};

// Of a "traceparent" header; not valid() where the text is malformed.
TraceContext ParseTraceparent(absl::string_view text);
// "00-<trace>-<span>-<flags>". REQUIRES: valid().
std::string FormatTraceparent(const TraceContext& context);

// A new span of the same trace, or of a new sampled one where `parent` is not valid. Ids are
// random.
TraceContext ChildOf(const TraceContext& parent);

}  // namespace kiln
