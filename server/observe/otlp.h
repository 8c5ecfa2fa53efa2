// Spans as OTLP's JSON: an ExportTraceServiceRequest in protobuf's JSON mapping, with ids in hex
// and enums as numbers, as https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding has it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/observe/tracing.h"

namespace kiln::server {

// Who sends the spans.
struct TraceResource {
  std::string service_name = "kilnd";
  std::string service_version;
  std::string host_name;
  std::string instance_id;
};

// Valid JSON and UTF-8 whatever the names and values hold.
std::string EncodeOtlpJson(const TraceResource& resource, absl::Span<const SpanRecord> spans);

}  // namespace kiln::server
