#include "server/rpc/request_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(10);

class Reader final : public RequestReader {
 public:
  void AwaitRefusal() override { awaits_ = true; }
  void Refuse(absl::string_view why) override {
    EXPECT_TRUE(awaits_);
    why_ = std::string(why);
    refused_.Notify();
  }

  bool WaitForRefusal() { return refused_.WaitForNotificationWithTimeout(kPatience); }
  bool refused() const { return refused_.HasBeenNotified(); }
  const std::string& why() const { return why_; }
  RequestWatch::Read read;

 private:
  bool awaits_ = false;
  std::string why_;
  absl::Notification refused_;
};

class RequestWatchTest : public ::testing::Test {
 protected:
  RequestLimits Limits() {
    RequestLimits limits{.bytes = 1000 << 10, .connection_bytes = 600 << 10};
    limits.received_bytes = [this](absl::string_view peer) -> std::optional<int64_t> {
      absl::MutexLock lock(&mu_);
      ++looks_;
      auto it = received_.find(std::string(peer));
      if (it == received_.end()) return std::nullopt;
      return it->second;
    };
    return limits;
  }
  void Receive(const std::string& peer, int64_t kib) {
    absl::MutexLock lock(&mu_);
    received_[peer] += kib << 10;
  }
  // Until the watch has asked `count` times more what came from somebody.
  void AwaitLooks(int64_t count) {
    absl::MutexLock lock(&mu_);
    const int64_t wanted = looks_ + count;
    auto looked = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return looks_ >= wanted; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&looked), kPatience));
  }

  absl::Mutex mu_;
  std::map<std::string, int64_t> received_ ABSL_GUARDED_BY(mu_);
  int64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(RequestWatchTest, AConnectionOverItsLimitLosesItsRequestsAndOthersStay) {
  Receive("ipv4:10.0.0.1:1", 0);
  Receive("ipv4:10.0.0.2:1", 0);
  Reader greedy;
  Reader modest;
  RequestWatch watch(Limits());
  watch.Begin(greedy.read, &greedy, "ipv4:10.0.0.1:1");
  watch.Begin(modest.read, &modest, "ipv4:10.0.0.2:1");
  Receive("ipv4:10.0.0.1:1", 700);
  Receive("ipv4:10.0.0.2:1", 200);
  ASSERT_TRUE(greedy.WaitForRefusal());
  EXPECT_THAT(greedy.why(), HasSubstr("too many bytes"));
  EXPECT_FALSE(watch.End(greedy.read, 5));
  EXPECT_FALSE(modest.refused());
  EXPECT_EQ(watch.Counts().refused_bytes, 1);
  EXPECT_EQ(watch.Counts().incomplete, 1);
  EXPECT_TRUE(watch.End(modest.read, 200 << 10));
}

TEST_F(RequestWatchTest, TheAddressWithMostPaysWhenAllTogetherAreOver) {
  Receive("ipv4:10.0.0.9:1", 0);
  Reader modest;
  std::vector<std::unique_ptr<Reader>> many;
  RequestWatch watch(Limits());
  watch.Begin(modest.read, &modest, "ipv4:10.0.0.9:1");
  Receive("ipv4:10.0.0.9:1", 300);
  // Each has less than the modest one, together they have more.
  for (int i = 1; i <= 4; ++i) {
    const std::string peer = "ipv4:10.0.0.1:" + std::to_string(i);
    Receive(peer, 0);
    many.push_back(std::make_unique<Reader>());
    watch.Begin(many.back()->read, many.back().get(), peer);
    Receive(peer, 190);
  }
  const absl::Time end = absl::Now() + kPatience;
  while (watch.Counts().refused_bytes == 0 && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  AwaitLooks(20);
  EXPECT_FALSE(modest.refused());
  EXPECT_EQ(watch.Counts().refused_bytes, 1);  // 1060 KiB less 190 is under the limit
  EXPECT_TRUE(watch.End(modest.read, 300 << 10));
  for (auto& reader : many) {
    if (watch.End(reader->read, -1)) EXPECT_FALSE(reader->refused());
  }
}

TEST_F(RequestWatchTest, WholeMessagesAreNotHeldAgainstTheNext) {
  const std::string peer = "ipv4:10.0.0.1:1";
  Receive(peer, 0);
  Reader reader;
  RequestWatch watch(Limits());
  for (int i = 0; i < 20; ++i) {
    watch.Begin(reader.read, &reader, peer);
    Receive(peer, 500);
    AwaitLooks(2);  // it takes longer than a moment
    EXPECT_EQ(watch.Counts().refused_bytes, 0);
    EXPECT_TRUE(watch.End(reader.read, 500 << 10));
  }
}

TEST_F(RequestWatchTest, WhatStaysIncompleteIsRefusedInTime) {
  RequestLimits limits;  // without a look at connections
  limits.time = absl::Milliseconds(50);
  Reader reader;
  RequestWatch watch(limits);
  watch.Begin(reader.read, &reader, "unix:");
  ASSERT_TRUE(reader.WaitForRefusal());
  EXPECT_THAT(reader.why(), HasSubstr("50ms"));
  EXPECT_FALSE(watch.End(reader.read, 1));
  EXPECT_EQ(watch.Counts().refused_time, 1);
  EXPECT_EQ(watch.Counts().incomplete, 0);
}

TEST_F(RequestWatchTest, AStreamMayPauseLongerThanARequestMayTake) {
  RequestLimits limits;
  limits.time = absl::Milliseconds(50);
  limits.pause = absl::Milliseconds(500);
  Reader first;
  Reader next;
  RequestWatch watch(limits);
  const absl::Time start = absl::Now();
  watch.Begin(next.read, &next, "unix:", /*another=*/true);
  watch.Begin(first.read, &first, "unix:");
  ASSERT_TRUE(first.WaitForRefusal());
  ASSERT_TRUE(next.WaitForRefusal());
  EXPECT_GE(absl::Now() - start, limits.pause);
  EXPECT_THAT(next.why(), HasSubstr("500ms"));
  EXPECT_FALSE(watch.End(first.read, 1));
  EXPECT_FALSE(watch.End(next.read, 1));
}

}  // namespace
}  // namespace kiln::server
