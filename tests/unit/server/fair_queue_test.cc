#include "server/jobs/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Priority kNow = Priority::kInteractive;
constexpr Priority kLater = Priority::kWarmup;

// Pushes jobs and remembers whose they are.
class FairQueueTest : public ::testing::Test {
 protected:
  void Make(FairQueueOptions options) { queue_ = std::make_unique<FairQueue>(options); }
  void Push(const std::string& tenant, int jobs, Priority priority = kNow) {
    for (int i = 0; i < jobs; ++i) {
      FairQueue::Pushed pushed = queue_->Push(++last_, tenant, priority);
      ASSERT_TRUE(pushed.status.ok()) << pushed.status;
      ASSERT_FALSE(pushed.evicted);
      names_[last_] = priority == kLater ? tenant + "*" : tenant;
    }
  }
  // Runs the next `jobs`, each for `took`, one after the other; whose they were.
  std::vector<std::string> Run(int jobs, absl::Duration took = absl::Seconds(1)) {
    std::vector<std::string> ran;
    for (int i = 0; i < jobs; ++i) {
      auto job = queue_->Pop();
      if (!job) break;
      ran.push_back(names_[*job]);
      queue_->Done(*job, took);
    }
    return ran;
  }
  static int CountOf(const std::vector<std::string>& ran, const std::string& name) {
    return static_cast<int>(std::count(ran.begin(), ran.end(), name));
  }

  int64_t last_ = 0;
  std::map<int64_t, std::string> names_;
  std::unique_ptr<FairQueue> queue_ = std::make_unique<FairQueue>(FairQueueOptions{});
};

TEST_F(FairQueueTest, TenantsTakeTurnsHoweverManyJobsOneHas) {
  Push("big", 50);
  Push("small", 2);
  EXPECT_THAT(Run(4), ElementsAre("big", "small", "big", "small"));
  EXPECT_THAT(Run(2), ElementsAre("big", "big"));
}

TEST_F(FairQueueTest, OneTenantsJobsKeepTheirOrder) {
  Push("a", 3);
  for (int64_t job = 1; job <= 3; ++job) {
    EXPECT_EQ(queue_->Pop(), job);
    queue_->Done(job, absl::Seconds(1));
  }
  EXPECT_FALSE(queue_->CanPop());
  EXPECT_EQ(queue_->Pop(), std::nullopt);
}

TEST_F(FairQueueTest, WeightsDivideTheTime) {
  Make({.weights = {{"gold", 3}}});
  Push("gold", 100);
  Push("plain", 100);
  std::vector<std::string> ran = Run(80);
  EXPECT_NEAR(CountOf(ran, "gold"), 60, 2);
  EXPECT_NEAR(CountOf(ran, "plain"), 20, 2);
}

TEST_F(FairQueueTest, WhoseJobsTakeLongHasFewerTurns) {
  Push("long", 100);
  Push("short", 100);
  int counts[2] = {0, 0};
  for (int i = 0; i < 60; ++i) {
    auto job = queue_->Pop();
    bool is_long = names_[*job] == "long";
    ++counts[is_long];
    queue_->Done(*job, is_long ? absl::Seconds(4) : absl::Seconds(1));
  }
  EXPECT_NEAR(counts[0], 4 * counts[1], 8);
}

TEST_F(FairQueueTest, ATenantThatWasIdleSavesNothingUp) {
  Push("idle", 1);
  Run(1);
  Push("busy", 100);
  Run(50);
  Push("idle", 50);
  std::vector<std::string> ran = Run(20);
  EXPECT_NEAR(CountOf(ran, "idle"), 10, 1);
}

TEST_F(FairQueueTest, InteractiveJobsGoBeforeWarmUpOfEveryTenant) {
  Push("a", 3, kLater);
  Push("b", 2, kNow);
  Push("a", 1, kNow);
  std::vector<std::string> ran = Run(6);
  EXPECT_EQ(CountOf({ran.begin(), ran.begin() + 3}, "a*"), 0);
  EXPECT_EQ(CountOf({ran.begin() + 3, ran.end()}, "a*"), 3);
}

TEST_F(FairQueueTest, WarmUpIsNotStarved) {
  Push("a", 100, kNow);
  Push("b", 100, kLater);
  EXPECT_EQ(CountOf(Run(90), "b*"), 90 / FairQueue::kWarmupShare);
}

TEST_F(FairQueueTest, ATenantsRunningJobsAreLimited) {
  Make({.tenant_max_running = 2});
  Push("a", 5);
  auto first = queue_->Pop();
  ASSERT_TRUE(queue_->Pop());
  EXPECT_FALSE(queue_->CanPop());
  EXPECT_EQ(queue_->size(), 3);
  Push("b", 1);
  auto other = queue_->Pop();
  ASSERT_TRUE(other);
  EXPECT_EQ(names_[*other], "b");
  EXPECT_FALSE(queue_->CanPop());
  queue_->Done(*first, absl::Seconds(1));
  EXPECT_TRUE(queue_->CanPop());
}

TEST_F(FairQueueTest, ATenantsQueuedJobsAreLimited) {
  Make({.tenant_max_queued = 2});
  Push("a", 2);
  FairQueue::Pushed refused = queue_->Push(99, "a", kNow);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status));
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("'a'"));
  Push("b", 2);
  Run(1);
  Push("a", 1);
}

TEST_F(FairQueueTest, AFullQueueTurnsAwayWhoHasMost) {
  Make({.max_queued = 10});
  Push("big", 9);
  Push("small", 1);
  EXPECT_FALSE(queue_->Push(100, "big", kNow).status.ok());
  FairQueue::Pushed pushed = queue_->Push(101, "small", kNow);
  EXPECT_TRUE(pushed.status.ok());
  EXPECT_EQ(pushed.evicted, 9);  // big's newest
  EXPECT_EQ(queue_->size(), 10);
  for (int64_t job = 102; queue_->Push(job, "small", kNow).status.ok(); ++job) {
    ASSERT_LT(job, 120);
  }
  for (const TenantCounts& counts : queue_->Tenants()) {
    EXPECT_NEAR(counts.queued, 5, 1) << counts.tenant;
  }
}

TEST_F(FairQueueTest, AFullQueueOfWarmUpTakesInteractiveJobs) {
  Make({.max_queued = 3});
  Push("a", 3, kLater);
  EXPECT_FALSE(queue_->Push(98, "a", kLater).status.ok());
  FairQueue::Pushed pushed = queue_->Push(99, "a", kNow);
  EXPECT_TRUE(pushed.status.ok());
  EXPECT_EQ(pushed.evicted, 3);
  EXPECT_EQ(queue_->Pop(), 99);
}

TEST_F(FairQueueTest, WarmUpDoesNotPushInteractiveJobsOut) {
  Make({.max_queued = 3});
  Push("a", 3, kNow);
  EXPECT_FALSE(queue_->Push(99, "b", kLater).status.ok());
  EXPECT_EQ(queue_->size(), 3);
}

TEST_F(FairQueueTest, ARemovedJobIsNotRun) {
  Push("a", 3);
  EXPECT_TRUE(queue_->Remove(2));
  EXPECT_FALSE(queue_->Remove(2));
  EXPECT_EQ(queue_->Pop(), 1);
  EXPECT_FALSE(queue_->Remove(1));
  EXPECT_EQ(queue_->Pop(), 3);
  EXPECT_EQ(queue_->size(), 0);
}

TEST_F(FairQueueTest, AFloodOfTenantNamesLeavesNothingBehind) {
  for (int i = 0; i < 20000; ++i) {
    Push(absl::StrCat("tenant-", i), 1);
    Run(1);
  }
  EXPECT_TRUE(queue_->Tenants().empty());
  EXPECT_LE(queue_->remembered(), 1100u);
}

TEST_F(FairQueueTest, AJobThatGoesOnCountsAgain) {
  Make({.tenant_max_running = 1});
  Push("a", 2);
  auto job = queue_->Pop();
  queue_->Done(*job, absl::ZeroDuration());  // parked
  queue_->Resume(*job, "a", kNow);
  EXPECT_FALSE(queue_->CanPop());
  queue_->Done(*job, absl::Seconds(1));
  EXPECT_TRUE(queue_->CanPop());
}

}  // namespace
}  // namespace kiln::server
