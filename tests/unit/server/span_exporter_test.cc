#include "server/observe/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/unit/server/collector.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

struct Counts {
  absl::Mutex mu;
  int64_t exported = 0;
  std::map<std::string, int64_t> dropped;

  int64_t Dropped(const std::string& reason) {
    absl::MutexLock lock(&mu);
    return dropped[reason];
  }
  // Waits until so many spans were exported or dropped.
  bool Await(int64_t spans) {
    auto all = [this, spans] {
      int64_t sum = exported;
      for (const auto& [reason, count] : dropped) sum += count;
      return sum >= spans;
    };
    absl::MutexLock lock(&mu);
    return mu.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(20));
  }
};

SpanExporterOptions Options(const std::string& url, Counts& counts) {
  SpanExporterOptions options;
  options.endpoint = url;
  options.max_batch_age = absl::Milliseconds(20);
  options.first_backoff = absl::Milliseconds(10);
  options.on_exported = [&counts](int64_t spans) {
    absl::MutexLock lock(&counts.mu);
    counts.exported += spans;
  };
  options.on_dropped = [&counts](absl::string_view reason, int64_t spans) {
    absl::MutexLock lock(&counts.mu);
    counts.dropped[std::string(reason)] += spans;
  };
  return options;
}

SpanRecord MakeSpan(int number) {
  SpanRecord span;
  span.context = ChildOf({});
  span.name = absl::StrCat("span ", number);
  span.start = span.end = absl::Now();
  return span;
}

TEST(SpanExporter, SendsBatchesAsJson) {
  Collector collector;
  Counts counts;
  SpanExporterOptions options = Options(collector.url(), counts);
  options.max_batch_spans = 10;
  auto exporter = StartSpanExporter(options);
  for (int i = 0; i < 25; ++i) exporter->Add(MakeSpan(i));
  EXPECT_TRUE(counts.Await(25));
  EXPECT_EQ(counts.exported, 25);
  std::vector<std::string> bodies = collector.Bodies(3, absl::Seconds(5));
  ASSERT_GE(bodies.size(), 3u);
  EXPECT_THAT(bodies[0], HasSubstr("\"span 0\""));
  EXPECT_THAT(bodies.back(), HasSubstr("\"span 24\""));
  EXPECT_THAT(collector.LastHead(), HasSubstr("POST /v1/traces HTTP/1.1"));
  EXPECT_THAT(collector.LastHead(), HasSubstr("Content-Type: application/json"));
}

TEST(SpanExporter, SendsAgainWhatABusyCollectorTurnedAway) {
  Collector collector;
  collector.set_status(503);
  Counts counts;
  SpanExporterOptions options = Options(collector.url(), counts);
  options.max_retries = 50;
  auto exporter = StartSpanExporter(options);
  exporter->Add(MakeSpan(1));
  EXPECT_GE(collector.Bodies(2, absl::Seconds(10)).size(), 2u);
  collector.set_status(200);
  EXPECT_TRUE(counts.Await(1));
  EXPECT_EQ(counts.exported, 1);
}

TEST(SpanExporter, DropsWhatACollectorRefuses) {
  Collector collector;
  collector.set_status(400);
  Counts counts;
  auto exporter = StartSpanExporter(Options(collector.url(), counts));
  exporter->Add(MakeSpan(1));
  EXPECT_TRUE(counts.Await(1));
  EXPECT_EQ(counts.Dropped("refused"), 1);
  EXPECT_EQ(collector.Bodies(2, absl::Milliseconds(100)).size(), 1u);
}

TEST(SpanExporter, CountsWhatNobodyTakes) {
  Counts counts;
  SpanExporterOptions options = Options("http://127.0.0.1:1/v1/traces", counts);
  options.max_retries = 1;
  auto exporter = StartSpanExporter(options);
  exporter->Add(MakeSpan(1));
  EXPECT_TRUE(counts.Await(1));
  EXPECT_EQ(counts.Dropped("unreachable"), 1);
}

TEST(SpanExporter, AStalledCollectorCostsSpansAndNoTime) {
  Collector collector;
  collector.set_status(0);
  Counts counts;
  SpanExporterOptions options = Options(collector.url(), counts);
  options.max_queued_spans = 5;
  options.max_batch_spans = 5;
  options.flush_limit = absl::Milliseconds(50);
  auto exporter = StartSpanExporter(options);
  exporter->Add(MakeSpan(0));
  ASSERT_EQ(collector.Bodies(1, absl::Seconds(10)).size(), 1u);
  absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) exporter->Add(MakeSpan(i));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(counts.Dropped("queue_full"), 995);
  start = absl::Now();
  exporter.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(counts.Dropped("unreachable"), 6);  // the five queued and the one under way
}

TEST(SpanExporter, SendsWhatIsQueuedBeforeItEnds) {
  Collector collector;
  Counts counts;
  SpanExporterOptions options = Options(collector.url(), counts);
  options.max_batch_age = absl::Hours(1);
  auto exporter = StartSpanExporter(options);
  exporter->Add(MakeSpan(1));
  exporter.reset();
  EXPECT_EQ(counts.exported, 1);
}

TEST(SpanExporter, SamplesNewTracesByItsRatio) {
  Counts counts;
  SpanExporterOptions options = Options("http://127.0.0.1:1/v1/traces", counts);
  options.sample_ratio = 0;
  EXPECT_FALSE(StartSpanExporter(options)->SampleNewTrace());
  options.sample_ratio = 0.5;
  auto half = StartSpanExporter(options);
  int sampled = 0;
  for (int i = 0; i < 2000; ++i) sampled += half->SampleNewTrace();
  EXPECT_GT(sampled, 800);
  EXPECT_LT(sampled, 1200);
}

TEST(ParseOtlpEndpoint, TakesBasesAndFullAddresses) {
  EXPECT_EQ(*ParseOtlpEndpoint("http://localhost:4318"), "http://localhost:4318/v1/traces");
  EXPECT_EQ(*ParseOtlpEndpoint("http://localhost:4318/"), "http://localhost:4318/v1/traces");
  EXPECT_EQ(*ParseOtlpEndpoint("https://h/otlp"), "https://h/otlp/v1/traces");
  EXPECT_EQ(*ParseOtlpEndpoint("http://h:1/v1/traces"), "http://h:1/v1/traces");
  for (const char* bad : {"", "localhost:4318", "ftp://h", "http://", "http:///v1", "http://:4318",
                          "http://h/?x=1", "http://h /", "http://h\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseOtlpEndpoint(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace kiln::server
