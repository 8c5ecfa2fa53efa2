#include "server/observe/metric_table.h"

#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

TEST(MetricTable, FindsWhatTheFamilyHas) {
  prometheus::Registry registry;
  auto& family = prometheus::BuildCounter().Name("c_total").Help("h").Register(registry);
  MetricTable<prometheus::Counter, 2> table(family, {"a", "b"});
  table.At({"1", "2"}).Increment(3);
  EXPECT_EQ(&table.At({"1", "2"}), &family.Add({{"a", "1"}, {"b", "2"}}));
  EXPECT_NE(&table.At({"1", "2"}), &table.At({"2", "1"}));
  EXPECT_NE(&table.At({"12", ""}), &table.At({"1", "2"}));
  EXPECT_EQ(table.At({"1", "2"}).Value(), 3);
}

TEST(MetricTable, KeepsItsOwnCopyOfTheValues) {
  prometheus::Registry registry;
  auto& family = prometheus::BuildCounter().Name("c_total").Help("h").Register(registry);
  MetricTable<prometheus::Counter, 1> table(family, {"a"});
  for (int i = 0; i < 1000; ++i) {
    std::string value = absl::StrCat("a value that is too long to be kept in place, number ", i);
    table.At({value}).Increment(i);
    value.assign(value.size(), '#');
  }
  for (int i = 0; i < 1000; ++i) {
    std::string value = absl::StrCat("a value that is too long to be kept in place, number ", i);
    EXPECT_EQ(table.At({value}).Value(), i);
  }
}

TEST(MetricTable, HistogramsHaveTheirBoundaries) {
  prometheus::Registry registry;
  auto& family = prometheus::BuildHistogram().Name("h").Help("h").Register(registry);
  MetricTable<prometheus::Histogram, 1, prometheus::Histogram::BucketBoundaries> table(
      family, {"a"}, {1, 2});
  table.At({"x"}).Observe(1.5);
  auto buckets = table.At({"x"}).Collect().histogram.bucket;
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].cumulative_count, 0u);
  EXPECT_EQ(buckets[1].cumulative_count, 1u);
}

TEST(MetricTable, ThreadsThatMeetCountEverything) {
  prometheus::Registry registry;
  auto& family = prometheus::BuildCounter().Name("c_total").Help("h").Register(registry);
  MetricTable<prometheus::Counter, 1> table(family, {"a"});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&table] {
      for (int i = 0; i < 4000; ++i) table.At({absl::StrCat(i % 40)}).Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 40; ++i) EXPECT_EQ(table.At({absl::StrCat(i)}).Value(), 400) << i;
}

}  // namespace
}  // namespace kiln::server
