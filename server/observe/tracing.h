// Spans of what the server does, for a trace collector.
//
// A span knows its parent by a TraceContext, which calls, jobs and stages hand on. Where no sink is
// installed, or the caller said that its trace is not sampled, a span costs a load and a branch and
// hands on its parent's context.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/store.h"
#include "proto/base/trace_context.h"

namespace kiln::server {

// Numbers as in OTLP.
enum class SpanKind : int { kInternal = 1, kServer = 2 };

using SpanValue = std::variant<std::string, int64_t, double, bool>;

// A span that has ended.
struct SpanRecord {
  TraceContext context;
  std::array<uint8_t, 8> parent_span_id{};  // zeros: a root
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  absl::Time start;
  absl::Time end;
  std::vector<std::pair<std::string, SpanValue>> attributes;
  std::vector<TraceContext> links;
  absl::Status status;
};

// Thread-safe.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Never blocks.
  virtual void Add(SpanRecord span) = 0;
  // Of a trace that begins here. Traces that come from a caller keep the caller's decision.
  virtual bool SampleNewTrace() = 0;
};

// For the whole process, as logging is; null takes it away. The sink outlives every span that began
// while it was installed.
void InstallSpanSink(SpanSink* sink);

// A span under way. Used by one thread at a time; movable.
class Span {
 public:
  Span() = default;
  // Begins a child of `parent`, or a new trace where `parent` is not valid.
  static Span Begin(const TraceContext& parent, absl::string_view name,
                    SpanKind kind = SpanKind::kInternal);
  // As Begin, but records nothing where `parent` is not valid: for what is only ever a part.
  static Span BeginPart(const TraceContext& parent, absl::string_view name);
  Span(Span&&) = default;
  Span& operator=(Span&& other) noexcept;
  ~Span() { End(); }

  bool recording() const { return record_ != nullptr; }
  // What children take as their parent.
  const TraceContext& context() const { return context_; }

  // These do nothing where nothing is recorded.
  void Set(absl::string_view key, SpanValue value);
  void Link(const TraceContext& other);
  void SetStatus(const absl::Status& status);
  void SetStart(absl::Time start);
  void End(absl::Time end);
  void End();

 private:
  TraceContext context_;
  std::unique_ptr<SpanRecord> record_;
};

// Records a part that is over.
void RecordSpan(const TraceContext& parent, absl::string_view name, absl::Time start,
                absl::Duration duration);

// store.Get as a span "cache get" with the entry's kind and the tier that answered.
absl::StatusOr<cache::Found> TracedGet(const TraceContext& parent, cache::Store& store,
                                       const cache::Key& key);
// store.GetMany in the same way: one span for all, which counts `hits` of `keys`.
std::vector<absl::StatusOr<cache::Found>> TracedGetMany(const TraceContext& parent,
                                                        cache::Store& store,
                                                        absl::Span<const cache::Key> keys);

}  // namespace kiln::server
