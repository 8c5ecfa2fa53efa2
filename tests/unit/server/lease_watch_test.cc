#include "server/jobs/lease_watch.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "cache/memory_store.h"
#include "tests/unit/server/fake_leases.h"

namespace kiln::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr LeaseWatchOptions kQuick = {.ttl = absl::Milliseconds(150),
                                      .first_poll = absl::Milliseconds(5),
                                      .last_poll = absl::Milliseconds(20)};

// What one Await was answered.
struct Awaited {
  absl::Notification done;
  LeaseWatch::Answer answer;
};

class LeaseWatchTest : public ::testing::Test {
 protected:
  std::shared_ptr<Awaited> Await(LeaseWatch& watch) {
    auto awaited = std::make_shared<Awaited>();
    watch.Await(key_, [awaited](const LeaseWatch::Answer& answer) {
      awaited->answer = answer;
      awaited->done.Notify();
    });
    return awaited;
  }
  void PutEntry() {
    ASSERT_TRUE(
        store_->Put({cache::EntryKind::kArtifact, key_}, cache::MakeEntry("artifact")).ok());
  }
  bool TakenBy(const cache::Leases* holder) {
    absl::MutexLock lock(&tier_.mu);
    auto it = tier_.leases.find(key_);
    return it != tier_.leases.end() && it->second.holder == holder &&
           it->second.until > absl::Now();
  }

  const Digest key_ = Sha256("key");
  std::unique_ptr<cache::Store> store_ = cache::MakeMemoryStore(1 << 20);
  FakeLeaseTier tier_;
  FakeLeases mine_{&tier_};
  FakeLeases others_{&tier_};
};

TEST_F(LeaseWatchTest, AHeldLeaseIsRenewedUntilItIsReleased) {
  LeaseWatch watch(kQuick, &mine_, store_.get());
  ASSERT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kHeld);
  {
    absl::MutexLock lock(&tier_.mu);
    auto renewed = [&]() ABSL_SHARED_LOCKS_REQUIRED(tier_.mu) { return tier_.renewals >= 5; };
    ASSERT_TRUE(tier_.mu.AwaitWithTimeout(absl::Condition(&renewed), kPatience));
  }
  EXPECT_TRUE(TakenBy(&mine_));
  EXPECT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kBusy) << "a second job of this server";
  watch.Release(key_);
  EXPECT_FALSE(TakenBy(&mine_));
  EXPECT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kHeld);
}

TEST_F(LeaseWatchTest, TheEntryOfAnotherServerEndsTheWait) {
  ASSERT_EQ(others_.Acquire({cache::EntryKind::kArtifact, key_}, absl::Hours(1)),
            cache::LeaseOutcome::kHeld);
  LeaseWatch watch(kQuick, &mine_, store_.get());
  ASSERT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kBusy);
  auto awaited = Await(watch);
  EXPECT_FALSE(awaited->done.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  PutEntry();
  ASSERT_TRUE(awaited->done.WaitForNotificationWithTimeout(kPatience));
  ASSERT_TRUE(awaited->answer.found);
  EXPECT_EQ(awaited->answer.found->entry->bytes, "artifact");
  EXPECT_FALSE(awaited->answer.held);
}

TEST_F(LeaseWatchTest, ADeadHoldersLeaseIsTakenOverOnceItRunsOut) {
  ASSERT_EQ(others_.Acquire({cache::EntryKind::kArtifact, key_}, absl::Milliseconds(200)),
            cache::LeaseOutcome::kHeld);
  LeaseWatch watch(kQuick, &mine_, store_.get());
  absl::Time start = absl::Now();
  auto awaited = Await(watch);
  ASSERT_TRUE(awaited->done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(150));
  EXPECT_TRUE(awaited->answer.held);
  EXPECT_FALSE(awaited->answer.found);
  EXPECT_TRUE(TakenBy(&mine_));
}

TEST_F(LeaseWatchTest, ALeaseThatBringsNothingIsWaitedForOnlySoLong) {
  const Digest second = Sha256("second");
  for (const Digest& key : {key_, second}) {
    ASSERT_EQ(others_.Acquire({cache::EntryKind::kArtifact, key}, absl::Hours(1)),
              cache::LeaseOutcome::kHeld);
  }
  LeaseWatchOptions options = kQuick;
  options.longest_wait = absl::Milliseconds(600);
  LeaseWatch watch(options, &mine_, store_.get());
  absl::Time start = absl::Now();
  auto awaited = Await(watch);
  ASSERT_TRUE(awaited->done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(absl::Now() - start, options.longest_wait);
  EXPECT_FALSE(awaited->answer.held);
  EXPECT_FALSE(awaited->answer.found);
  EXPECT_FALSE(TakenBy(&mine_));
  // The next is believed for less.
  start = absl::Now();
  absl::Notification done;
  watch.Await(second, [&done](const LeaseWatch::Answer& answer) {
    EXPECT_FALSE(answer.held);
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(absl::Now() - start, options.ttl);
  EXPECT_LT(absl::Now() - start, options.longest_wait);
}

TEST_F(LeaseWatchTest, ATierThatGoesAwayLeavesTheServerToItself) {
  ASSERT_EQ(others_.Acquire({cache::EntryKind::kArtifact, key_}, absl::Hours(1)),
            cache::LeaseOutcome::kHeld);
  LeaseWatch watch(kQuick, &mine_, store_.get());
  auto awaited = Await(watch);
  {
    absl::MutexLock lock(&tier_.mu);
    tier_.reachable = false;
  }
  ASSERT_TRUE(awaited->done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_FALSE(awaited->answer.held);
  EXPECT_FALSE(awaited->answer.found);
}

TEST_F(LeaseWatchTest, WhatIsForgottenIsNotAnsweredAndHoldsNothing) {
  ASSERT_EQ(others_.Acquire({cache::EntryKind::kArtifact, key_}, absl::Hours(1)),
            cache::LeaseOutcome::kHeld);
  LeaseWatch watch(kQuick, &mine_, store_.get());
  auto awaited = Await(watch);
  watch.Forget(key_);
  others_.Release({cache::EntryKind::kArtifact, key_});
  EXPECT_FALSE(awaited->done.WaitForNotificationWithTimeout(absl::Milliseconds(60)));
  EXPECT_FALSE(TakenBy(&mine_));
}

TEST_F(LeaseWatchTest, ALeaseThatATierForgotIsTakenAgain) {
  LeaseWatch watch(kQuick, &mine_, store_.get());
  ASSERT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kHeld);
  absl::MutexLock lock(&tier_.mu);
  tier_.leases.clear();
  auto again = [&]() ABSL_SHARED_LOCKS_REQUIRED(tier_.mu) { return tier_.acquisitions == 2; };
  EXPECT_TRUE(tier_.mu.AwaitWithTimeout(absl::Condition(&again), kPatience));
}

TEST_F(LeaseWatchTest, TheEndOfTheServerFreesItsLeases) {
  {
    LeaseWatch watch(kQuick, &mine_, store_.get());
    ASSERT_EQ(watch.Acquire(key_), cache::LeaseOutcome::kHeld);
  }
  EXPECT_FALSE(TakenBy(&mine_));
}

}  // namespace
}  // namespace kiln::server
