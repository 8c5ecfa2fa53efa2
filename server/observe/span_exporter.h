// Sends spans to an OTLP/HTTP collector: in the background, in batches, within bounds.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/observe/otlp.h"
#include "server/observe/tracing.h"

namespace kiln::server {

struct SpanExporterOptions {
  std::string endpoint;       // of ParseOtlpEndpoint
  double sample_ratio = 1.0;  // of traces that begin here
  TraceResource resource;
  size_t max_queued_spans = 8192;
  size_t max_batch_spans = 512;
  absl::Duration max_batch_age = absl::Seconds(1);
  absl::Duration request_timeout = absl::Seconds(5);
  // Retries of a batch that a collector was too busy for, or that could not be reached.
  int max_retries = 2;
  absl::Duration first_backoff = absl::Milliseconds(500);
  // How long the destructor waits for what is queued.
  absl::Duration flush_limit = absl::Milliseconds(500);
  // Called on the exporter's thread, or the one that adds a span.
  std::function<void(int64_t spans)> on_exported;
  std::function<void(absl::string_view reason, int64_t spans)> on_dropped;
};

// A thread with a queue. A collector that is away, slow or says no costs spans, which are counted,
// and never a caller's time. The first failure of a row of them is logged.
std::unique_ptr<SpanSink> StartSpanExporter(SpanExporterOptions options);

// "http://HOST:PORT[/PATH]" or https, as OTEL_EXPORTER_OTLP_ENDPOINT is written: what spans are
// sent to, with "/v1/traces" added where the path does not end so. INVALID_ARGUMENT otherwise.
absl::StatusOr<std::string> ParseOtlpEndpoint(absl::string_view text);

}  // namespace kiln::server
