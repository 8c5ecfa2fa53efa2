#include "server/observe/tracing.h"

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"

namespace kiln::server {
namespace {

std::atomic<SpanSink*> g_sink{nullptr};

// What a trace may carry at most, whoever named things.
constexpr size_t kMaxValueBytes = 1024;
constexpr size_t kMaxAttributes = 32;

}  // namespace

void InstallSpanSink(SpanSink* sink) {
  g_sink = sink;
}

Span Span::Begin(const TraceContext& parent, absl::string_view name, SpanKind kind) {
  Span span;
  span.context_ = parent;
  SpanSink* sink = g_sink.load(std::memory_order_acquire);
  if (sink == nullptr || (parent.valid() && !parent.sampled)) return span;
  span.context_ = ChildOf(parent);
  if (!parent.valid() && !sink->SampleNewTrace()) {
    // Parts know by the flag that they are not recorded, and the log has an id all the same.
    span.context_.sampled = false;
    return span;
  }
  span.record_ = std::make_unique<SpanRecord>();
  span.record_->context = span.context_;
  span.record_->parent_span_id = parent.span_id;
  span.record_->name = std::string(name);
  span.record_->kind = kind;
  span.record_->start = absl::Now();
  return span;
}

Span Span::BeginPart(const TraceContext& parent, absl::string_view name) {
  return parent.valid() && parent.sampled ? Begin(parent, name) : Span();
}

Span& Span::operator=(Span&& other) noexcept {
  if (this == &other) return *this;
  End();
  context_ = other.context_;
  record_ = std::move(other.record_);
  return *this;
}

void Span::Set(absl::string_view key, SpanValue value) {
  if (!recording() || record_->attributes.size() >= kMaxAttributes) return;
  if (auto* text = std::get_if<std::string>(&value); text && text->size() > kMaxValueBytes) {
    text->resize(kMaxValueBytes);
  }
  record_->attributes.emplace_back(std::string(key), std::move(value));
}

void Span::Link(const TraceContext& other) {
  if (recording() && other.valid()) record_->links.push_back(other);
}

void Span::SetStatus(const absl::Status& status) {
  if (recording()) record_->status = status;
}

void Span::SetStart(absl::Time start) {
  if (recording()) record_->start = start;
}

void Span::End(absl::Time end) {
  if (!recording()) return;
  std::unique_ptr<SpanRecord> record = std::move(record_);
  record->end = end;
  if (SpanSink* sink = g_sink.load(std::memory_order_acquire)) sink->Add(std::move(*record));
}

void Span::End() {
  if (recording()) End(absl::Now());
}

void RecordSpan(const TraceContext& parent, absl::string_view name, absl::Time start,
                absl::Duration duration) {
  Span span = Span::BeginPart(parent, name);
  span.SetStart(start);
  span.End(start + duration);
}

absl::StatusOr<cache::Found> TracedGet(const TraceContext& parent, cache::Store& store,
                                       const cache::Key& key) {
  Span span = Span::BeginPart(parent, "cache get");
  absl::StatusOr<cache::Found> found = store.Get(key);
  if (span.recording()) {
    span.Set("kiln.cache.kind", std::string(cache::EntryKindName(key.kind)));
    span.Set("kiln.key", key.digest.ShortHex());
    span.Set("kiln.cache.hit", found.ok());
    if (found.ok()) {
      span.Set("kiln.cache.tier", std::string(found->tier));
      span.Set("kiln.bytes", static_cast<int64_t>(found->entry->bytes.size()));
    } else if (!absl::IsNotFound(found.status())) {
      span.SetStatus(found.status());
    }
  }
  return found;
}

std::vector<absl::StatusOr<cache::Found>> TracedGetMany(const TraceContext& parent,
                                                        cache::Store& store,
                                                        absl::Span<const cache::Key> keys) {
  if (keys.empty()) return {};
  Span span = Span::BeginPart(parent, "cache get");
  std::vector<absl::StatusOr<cache::Found>> found = store.GetMany(keys);
  if (span.recording()) {
    const int64_t hits =
        std::count_if(found.begin(), found.end(), [](const auto& each) { return each.ok(); });
    span.Set("kiln.cache.kind", std::string(cache::EntryKindName(keys.front().kind)));
    span.Set("kiln.cache.keys", static_cast<int64_t>(keys.size()));
    span.Set("kiln.cache.hits", hits);
    span.Set("kiln.cache.hit", hits == static_cast<int64_t>(keys.size()));
    const absl::string_view tier = found.front().ok() ? found.front()->tier : "";
    const bool one_tier = std::all_of(found.begin(), found.end(), [&](const auto& each) {
      return each.ok() && each->tier == tier;
    });
    if (one_tier) span.Set("kiln.cache.tier", std::string(tier));
  }
  return found;
}

}  // namespace kiln::server
