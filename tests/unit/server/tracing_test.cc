#include "server/observe/tracing.h"

#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "absl/time/clock.h"
#include "cache/memory_store.h"
#include "server/observe/otlp.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

constexpr char kCaller[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class KeepingSink final : public SpanSink {
 public:
  KeepingSink() { InstallSpanSink(this); }
  ~KeepingSink() override { InstallSpanSink(nullptr); }
  void Add(SpanRecord span) override { spans.push_back(std::move(span)); }
  bool SampleNewTrace() override { return sample; }

  std::vector<SpanRecord> spans;
  bool sample = true;
};

TEST(Span, ContinuesTheCallersTrace) {
  KeepingSink sink;
  TraceContext caller = ParseTraceparent(kCaller);
  {
    Span call = Span::Begin(caller, "call", SpanKind::kServer);
    RecordSpan(call.context(), "part", absl::Now(), absl::Seconds(1));
  }
  ASSERT_EQ(sink.spans.size(), 2u);
  const SpanRecord& part = sink.spans[0];
  const SpanRecord& call = sink.spans[1];
  EXPECT_EQ(call.context.trace_id, caller.trace_id);
  EXPECT_EQ(call.parent_span_id, caller.span_id);
  EXPECT_EQ(part.context.trace_id, caller.trace_id);
  EXPECT_EQ(part.parent_span_id, call.context.span_id);
  EXPECT_EQ(part.end - part.start, absl::Seconds(1));
  EXPECT_GE(call.end, call.start);
}

TEST(Span, WhatTheCallerDoesNotSampleIsNotRecorded) {
  KeepingSink sink;
  TraceContext caller = ParseTraceparent(kCaller);
  caller.sampled = false;
  Span call = Span::Begin(caller, "call");
  EXPECT_FALSE(call.recording());
  EXPECT_EQ(call.context().TraceIdHex(), caller.TraceIdHex());
  RecordSpan(call.context(), "part", absl::Now(), absl::Seconds(1));
  call.End();
  EXPECT_TRUE(sink.spans.empty());
}

TEST(Span, ATraceThatIsLeftOutIsLeftOutAsAWhole) {
  KeepingSink sink;
  sink.sample = false;
  Span call = Span::Begin({}, "call");
  EXPECT_TRUE(call.context().valid());  // the log has an id
  RecordSpan(call.context(), "part", absl::Now(), absl::Seconds(1));
  EXPECT_TRUE(sink.spans.empty());
}

TEST(Span, WithoutASinkTheCallersTraceIsHandedOn) {
  TraceContext caller = ParseTraceparent(kCaller);
  Span call = Span::Begin(caller, "call");
  EXPECT_FALSE(call.recording());
  EXPECT_EQ(FormatTraceparent(call.context()), kCaller);
  EXPECT_FALSE(Span::Begin({}, "call").context().valid());
}

TEST(Span, MovingOneDoesNotEndIt) {
  KeepingSink sink;
  Span kept;
  {
    Span made = Span::Begin({}, "call");
    kept = std::move(made);
  }
  EXPECT_TRUE(sink.spans.empty());
  kept.End();
  kept.End();
  EXPECT_EQ(sink.spans.size(), 1u);
}

TEST(TracedGet, SaysWhichTierAnswered) {
  KeepingSink sink;
  auto store = cache::MakeMemoryStore(1 << 20);
  cache::Key key{cache::EntryKind::kArtifact, Sha256("k")};
  Span call = Span::Begin({}, "call");
  EXPECT_FALSE(TracedGet(call.context(), *store, key).ok());
  ASSERT_TRUE(store->Put(key, cache::MakeEntry("value")).ok());
  EXPECT_TRUE(TracedGet(call.context(), *store, key).ok());
  ASSERT_EQ(sink.spans.size(), 2u);
  auto attributes = [&](size_t i) {
    return std::map<std::string, SpanValue>(sink.spans[i].attributes.begin(),
                                            sink.spans[i].attributes.end());
  };
  EXPECT_EQ(std::get<bool>(attributes(0)["kiln.cache.hit"]), false);
  EXPECT_TRUE(sink.spans[0].status.ok());
  EXPECT_EQ(std::get<std::string>(attributes(1)["kiln.cache.tier"]), "memory");
  EXPECT_EQ(std::get<int64_t>(attributes(1)["kiln.bytes"]), 5);
}

using google::protobuf::Struct;

const Struct& Object(const Struct& in, const char* list) {
  return in.fields().at(list).list_value().values(0).struct_value();
}

TEST(Otlp, HasTheFieldsOfAnExportRequest) {
  SpanRecord span;
  span.context = ParseTraceparent(kCaller);
  span.parent_span_id = {1, 2, 3, 4, 5, 6, 7, 8};
  span.name = "job";
  span.kind = SpanKind::kServer;
  span.start = absl::FromUnixNanos(1700000000123456789);
  span.end = span.start + absl::Nanoseconds(5);
  span.attributes = {{"bytes", int64_t{1} << 60}, {"hit", true}, {"ratio", 0.5}, {"name", "x"}};
  span.links = {span.context, span.context};
  span.status = absl::InternalError("boom");
  Struct message;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(
                  EncodeOtlpJson({.service_version = "1.2"}, {span, span}), &message)
                  .ok());
  const Struct& scope = Object(Object(message, "resourceSpans"), "scopeSpans");
  EXPECT_EQ(scope.fields().at("spans").list_value().values_size(), 2);
  const Struct& out = Object(scope, "spans");
  EXPECT_EQ(out.fields().at("traceId").string_value(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(out.fields().at("parentSpanId").string_value(), "0102030405060708");
  EXPECT_EQ(out.fields().at("startTimeUnixNano").string_value(), "1700000000123456789");
  EXPECT_EQ(out.fields().at("kind").number_value(), 2);
  EXPECT_EQ(out.fields().at("links").list_value().values_size(), 2);
  EXPECT_EQ(out.fields().at("status").struct_value().fields().at("code").number_value(), 2);
  const auto& attributes = out.fields().at("attributes").list_value();
  ASSERT_EQ(attributes.values_size(), 4);
  auto value = [&](int i) -> const Struct& {
    return attributes.values(i).struct_value().fields().at("value").struct_value();
  };
  EXPECT_EQ(value(0).fields().at("intValue").string_value(), "1152921504606846976");
  EXPECT_TRUE(value(1).fields().at("boolValue").bool_value());
  EXPECT_EQ(value(2).fields().at("doubleValue").number_value(), 0.5);
  EXPECT_EQ(value(3).fields().at("stringValue").string_value(), "x");
}

TEST(Otlp, HostileTextStaysText) {
  SpanRecord span;
  span.context = ParseTraceparent(kCaller);
  const std::string hostile = "\"}]}\xff\n\x1b\\";
  span.name = hostile;
  span.attributes = {
      {hostile, hostile}, {"inf", std::numeric_limits<double>::infinity()}, {"nan", std::nan("")}};
  span.status = absl::InternalError(hostile);
  std::string json = EncodeOtlpJson({.host_name = hostile}, {span});
  Struct message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &message).ok()) << json;
  EXPECT_THAT(json, HasSubstr("\\\"}]}"));
}

}  // namespace
}  // namespace kiln::server
