#include "client/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using Admission = Health::Admission;

constexpr absl::Time kStart = absl::UnixEpoch();
constexpr absl::Duration kMoment = absl::Milliseconds(1);

bool Connected(size_t) {
  return true;
}
bool NotConnected(size_t) {
  return false;
}

TEST(Health, AServerThatFailedComesLastUntilItsPauseIsOverAndItIsConnected) {
  Health health({"a:1", "b:1", "c:1"});
  EXPECT_THAT(health.Order(std::nullopt, kStart, Connected), ElementsAre(0, 1, 2));
  health.Failed(0, kStart);
  EXPECT_THAT(health.Order(std::nullopt, kStart, Connected), ElementsAre(1, 2, 0));
  const absl::Time later = kStart + absl::Seconds(1) + kMoment;
  EXPECT_THAT(health.Order(std::nullopt, later, NotConnected), ElementsAre(1, 2, 0));
  EXPECT_THAT(health.Order(std::nullopt, later, Connected), ElementsAre(0, 1, 2));
  health.Failed(0, later);
  EXPECT_THAT(health.Order(std::nullopt, later + absl::Seconds(1.5), Connected),
              ElementsAre(1, 2, 0))
      << "the second pause is longer";
  health.Answered(0);
  EXPECT_THAT(health.Order(std::nullopt, later, Connected), ElementsAre(0, 1, 2));
}

TEST(Health, AProbeThatItsCallerLeftIsAnothersNext) {
  Health health({"a:1"});
  health.GaveUp(kStart, absl::UnavailableError("away"));
  const absl::Time later = kStart + absl::Seconds(1) + kMoment;
  ASSERT_EQ(health.Begin(later), Admission::kProbe);
  ASSERT_EQ(health.Begin(later), Admission::kRefused);
  health.Withdrew();
  EXPECT_EQ(health.Begin(later), Admission::kProbe);
}

TEST(Health, PausesEndAtThirtySeconds) {
  Health health({"a:1", "b:1"});
  absl::Time now = kStart;
  for (int i = 0; i < 50; ++i) {
    health.Failed(0, now);
    now += absl::Seconds(31);
    EXPECT_THAT(health.Order(std::nullopt, now, Connected), ElementsAre(0, 1)) << i;
  }
}

TEST(Health, OneFailureThatEndsManyCallsCountsOnce) {
  Health health({"a:1", "b:1"});
  for (int i = 0; i < 100; ++i) health.Failed(0, kStart);
  EXPECT_THAT(health.Order(std::nullopt, kStart + absl::Seconds(1) + kMoment, Connected),
              ElementsAre(0, 1));
}

TEST(Health, GraphsAreSpreadOverServersAndKeepTheirsHoweverTheListIsOrdered) {
  const std::vector<std::string> one = {"a:1", "b:1", "c:1"}, other = {"c:1", "a:1", "b:1"};
  Health first(one), second(other);
  std::map<std::string, int> counts;
  for (uint64_t graph = 0; graph < 3000; ++graph) {
    const uint64_t affinity = graph * 0x9e3779b97f4a7c15u;
    const size_t at = first.Order(affinity, kStart, Connected)[0];
    EXPECT_EQ(one[at], other[second.Order(affinity, kStart, Connected)[0]]);
    ++counts[one[at]];
  }
  for (const auto& [server, count] : counts) EXPECT_NEAR(count, 1000, 150) << server;
}

TEST(Health, AfterACallWithoutServersOneProbesAndTheOthersAreRefused) {
  Health health({"a:1"});
  EXPECT_EQ(health.Begin(kStart), Admission::kUsual);
  health.GaveUp(kStart, absl::UnavailableError("a is away"));
  EXPECT_EQ(health.Begin(kStart + absl::Milliseconds(900)), Admission::kRefused);
  EXPECT_EQ(health.last_error(), absl::UnavailableError("a is away"));
  const absl::Time later = kStart + absl::Seconds(1);
  EXPECT_EQ(health.Begin(later), Admission::kProbe);
  EXPECT_EQ(health.Begin(later), Admission::kRefused);
  health.GaveUp(later, absl::UnavailableError("still away"));
  EXPECT_EQ(health.Begin(later + absl::Seconds(1.9)), Admission::kRefused);
  EXPECT_EQ(health.Begin(later + absl::Seconds(2)), Admission::kProbe);
  health.Answered(0);
  EXPECT_EQ(health.Begin(later + absl::Seconds(2)), Admission::kUsual);
}

TEST(Health, CallsThatFailTogetherAreOneFailure) {
  Health health({"a:1"});
  for (int i = 0; i < 100; ++i) health.GaveUp(kStart, absl::UnavailableError("away"));
  EXPECT_EQ(health.Begin(kStart + absl::Seconds(1)), Admission::kProbe);
}

}  // namespace
}  // namespace kiln
