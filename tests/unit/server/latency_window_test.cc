#include "server/observe/latency_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kiln::server {
namespace {

TEST(LatencyHistogramTest, QuantilesAreWithinThreePercent) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::lognormal_distribution<double> spread(7, 2);  // about 1 ms, from 10 us to seconds
  LatencyHistogram histogram;
  std::vector<double> all;
  for (int i = 0; i < 20'000; ++i) {
    double us = std::floor(std::min(spread(random) + 16, 3e9));
    all.push_back(us);
    histogram.Add(absl::Microseconds(us));
  }
  std::sort(all.begin(), all.end());
  for (double q : {0.01, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0}) {
    double exact = all[static_cast<size_t>(std::ceil(q * 20'000)) - 1];
    double told = absl::ToDoubleMicroseconds(histogram.Quantile(q));
    EXPECT_NEAR(told / exact, 1.0, 0.033) << q;
  }
}

TEST(LatencyHistogramTest, ExtremesHaveABucket) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), absl::ZeroDuration());
  histogram.Add(-absl::Seconds(1));
  EXPECT_EQ(histogram.Quantile(0.5), absl::ZeroDuration());
  histogram.Clear();
  histogram.Add(absl::Hours(100));
  histogram.Add(absl::InfiniteDuration());
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_GT(histogram.Quantile(0.5), absl::Hours(1));
}

TEST(LatencyHistogramTest, MergingAddsUp) {
  LatencyHistogram a;
  LatencyHistogram b;
  for (int i = 0; i < 90; ++i) a.Add(absl::Milliseconds(1));
  for (int i = 0; i < 10; ++i) b.Add(absl::Seconds(1));
  a.Merge(b);
  EXPECT_EQ(a.count(), 100);
  EXPECT_LT(a.Quantile(0.9), absl::Milliseconds(2));
  EXPECT_GT(a.Quantile(0.91), absl::Milliseconds(900));
}

TEST(SlotRingTest, AnOldSlotIsEmptiedWhenItsPlaceIsNeeded) {
  SlotRing<LatencyHistogram> ring;
  ring.At(1000).Add(absl::Seconds(1));
  ring.At(1000 + kWindowSlots).Add(absl::Seconds(1));
  ASSERT_NE(ring.Find(1000), nullptr);
  EXPECT_EQ(ring.Find(1000)->count(), 1);
  EXPECT_EQ(ring.At(1000 + kWindowSlots + 1).count(), 0);
  EXPECT_EQ(ring.Find(1000), nullptr);
  EXPECT_EQ(ring.Find(999), nullptr);
}

}  // namespace
}  // namespace kiln::server
