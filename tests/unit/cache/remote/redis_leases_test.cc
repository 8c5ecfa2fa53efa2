#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "cache/remote/remote_tier.h"
#include "tests/unit/cache/remote/fakes.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;

// One lease as the tier keeps it: SET NX and the two scripts, by what they do.
class RedisLeasesTest : public ::testing::Test {
 protected:
  RedisLeasesTest() {
    options_.observer.done = [](absl::string_view, bool, absl::Duration) {};
    leases_ = MakeRedisLeases(&client_, options_, &queue_);
    others_ = MakeRedisLeases(&client_, options_, &queue_);
  }
  absl::StatusOr<Reply> Answer() {
    if (away_) return absl::UnavailableError("away");
    const std::vector<std::string> command = client_.last();
    if (command[0] == "SET") {
      if (token_) return NilReply();
      token_ = command[2];
      return StatusReply("OK");
    }
    const bool release = absl::StrContains(command[1], "'del'");
    if (token_ != command[4]) return IntegerReply(0);
    if (release) token_.reset();
    return IntegerReply(1);
  }

  // Releases, too, have reached the tier.
  void Settle() {
    absl::Notification done;
    queue_.After([&done] { done.Notify(); });
    done.WaitForNotification();
  }

  bool away_ = false;
  std::optional<std::string> token_;
  FakeClient client_{[this](const std::string&) { return Answer(); }};
  RemoteTierOptions options_;
  std::unique_ptr<Leases> leases_;
  std::unique_ptr<Leases> others_;
  WriteQueue queue_{{},
                    [this](const Key&, const Entry&) {
                      wrote_with_lease_ = token_.has_value();
                      return absl::OkStatus();
                    },
                    nullptr,
                    [](WriteResult) {}};
  bool wrote_with_lease_ = false;
  const Key key_ = {EntryKind::kArtifact, Sha256("k")};
};

TEST_F(RedisLeasesTest, OneHoldsItUntilItIsReleased) {
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  const std::vector<std::string> command = client_.last();
  EXPECT_THAT(command, ElementsAre("SET", command[1], command[2], "NX", "PX", "5000"));
  EXPECT_EQ(command[2].size(), 32u);
  EXPECT_EQ(others_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kBusy);
  EXPECT_TRUE(leases_->Renew(key_, absl::Seconds(9)));
  EXPECT_EQ(client_.last().back(), "9000");
  leases_->Release(key_);
  Settle();
  EXPECT_EQ(others_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
}

TEST_F(RedisLeasesTest, AReleaseComesAfterWhatWasPutBefore) {
  ASSERT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  ASSERT_TRUE(queue_.Add(key_, MakeEntry("value")).ok());
  leases_->Release(key_);
  Settle();
  EXPECT_TRUE(wrote_with_lease_);
  EXPECT_FALSE(token_.has_value());
}

TEST_F(RedisLeasesTest, WhatIsNotOursIsLeftAlone) {
  EXPECT_EQ(others_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  EXPECT_FALSE(leases_->Renew(key_, absl::Seconds(5)));
  leases_->Release(key_);
  Settle();
  EXPECT_TRUE(token_.has_value());
}

TEST_F(RedisLeasesTest, AnExpiredLeaseThatAnotherTookIsNotRenewed) {
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  token_ = "another's";
  EXPECT_FALSE(leases_->Renew(key_, absl::Seconds(5)));
  leases_->Release(key_);
  Settle();
  EXPECT_EQ(token_, "another's");
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kBusy);
}

TEST_F(RedisLeasesTest, TheHolderMayAcquireAgain) {
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
}

TEST_F(RedisLeasesTest, ATierThatIsAwayIsUnavailable) {
  away_ = true;
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kUnavailable);
  away_ = false;
  EXPECT_EQ(leases_->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kHeld);
  away_ = true;
  EXPECT_FALSE(leases_->Renew(key_, absl::Seconds(5)));
  away_ = false;
  EXPECT_TRUE(leases_->Renew(key_, absl::Seconds(5))) << "one failed call does not lose it";
}

TEST_F(RedisLeasesTest, AServerThatAnswersNonsenseIsUnavailable) {
  FakeClient client([](const std::string&) -> absl::StatusOr<Reply> { return IntegerReply(1); });
  auto leases = MakeRedisLeases(&client, options_, &queue_);
  EXPECT_EQ(leases->Acquire(key_, absl::Seconds(5)), LeaseOutcome::kUnavailable);
  EXPECT_FALSE(leases->Renew(key_, absl::Seconds(5)));
}

}  // namespace
}  // namespace kiln::cache
