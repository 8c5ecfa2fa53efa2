// The shared tier over one real redis-server: what is shared, and that no failure of the server is
// more than a miss in its time limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cache/remote/entry_format.h"
#include "tests/integration/remote_tier_fixture.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

using cache::LeaseOutcome;
using cache::RemoteTier;
using cache::RemoteTierOptions;
using cache::WriteResult;

// What a busy machine may add to a time limit.
constexpr absl::Duration kSlack = absl::Seconds(2);

class RemoteTierTest : public RemoteTierFixture {
 protected:
  void SetUp() override {
    RemoteTierFixture::SetUp();
    if (IsSkipped()) return;
    StartRedis();
  }
  void StartRedis(std::vector<std::string> options = {}) {
    auto redis = RedisProcess::Start(std::move(options));
    ASSERT_TRUE(redis.ok()) << redis.status();
    redis_ = *std::move(redis);
    url_ = absl::StrCat("redis://", redis_->address());
  }
  // Puts entry 0 through a tier, changes the stored value, and says what a read makes of it.
  absl::Status GetAfter(const std::function<void(const std::string& name)>& change) {
    auto tier = Open(url_);
    PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
    change(cache::RemoteKeyName(ArtifactKey(0)));
    return tier->store().Get(ArtifactKey(0)).status();
  }

  std::unique_ptr<RedisProcess> redis_;
  std::string url_;
};

TEST_F(RemoteTierTest, WhatOneServerPutAnotherGets) {
  auto one = Open(url_);
  auto other = Open(url_);
  EXPECT_TRUE(absl::IsNotFound(other->store().Get(ArtifactKey(0)).status()));
  for (size_t size_bytes : {size_t{0}, size_t{1}, size_t{100000}, size_t{15} << 20}) {
    const cache::Key key = ArtifactKey(static_cast<int>(size_bytes));
    cache::EntryPtr entry = EntryOf(1, size_bytes);
    PutAndWait(*one, key, entry);
    auto found = other->store().Get(key);
    ASSERT_TRUE(found.ok()) << size_bytes << ": " << found.status();
    EXPECT_EQ(found->tier, "remote");
    EXPECT_EQ(found->entry->bytes, entry->bytes);
    EXPECT_EQ(found->entry->digest, entry->digest);
  }
  EXPECT_EQ(redis_->Call({"PTTL", cache::RemoteKeyName(ArtifactKey(1))}), "-1") << "no expiry";
}

TEST_F(RemoteTierTest, ManyEntriesAreReadTogether) {
  auto tier = Open(url_);
  std::vector<cache::Key> keys;
  for (int i = 0; i < 300; ++i) keys.push_back(ArtifactKey(i));
  for (int i = 0; i < 300; i += 3) ASSERT_TRUE(tier->store().Put(keys[i], EntryOf(i)).ok());
  ASSERT_TRUE(Eventually(absl::Seconds(20), [&] { return Written(WriteResult::kWritten) == 100; }));
  auto found = tier->store().GetMany(keys);
  ASSERT_EQ(found.size(), keys.size());
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(found[i].ok(), i % 3 == 0) << i << ": " << found[i].status();
    if (found[i].ok()) {
      EXPECT_EQ(found[i]->entry->bytes, EntryOf(i)->bytes);
    }
  }
}

TEST_F(RemoteTierTest, AStalledServerCostsManyReadsItsLimitOnce) {
  auto tier = Open(url_, [](RemoteTierOptions& o) { o.read_timeout = absl::Milliseconds(300); });
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  redis_->Stop();
  const absl::Time start = absl::Now();
  auto found = tier->store().GetMany(std::vector<cache::Key>(300, ArtifactKey(0)));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(300) + kSlack);
  ASSERT_EQ(found.size(), 300u);
  for (const auto& each : found) EXPECT_FALSE(each.ok());
  EXPECT_EQ(tier->Counts().nodes.open, 0) << "one failure, not three hundred";
  redis_->Continue();
}

TEST_F(RemoteTierTest, RemovedEntriesAreGoneForAll) {
  auto one = Open(url_);
  auto other = Open(url_);
  PutAndWait(*one, ArtifactKey(0), EntryOf(0));
  ASSERT_TRUE(other->store().Remove(ArtifactKey(0)).ok());
  EXPECT_TRUE(absl::IsNotFound(one->store().Get(ArtifactKey(0)).status()));
}

TEST_F(RemoteTierTest, EntriesExpireWhereThatIsAskedFor) {
  auto tier = Open(url_, [](RemoteTierOptions& o) { o.expiry = absl::Milliseconds(300); });
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  EXPECT_TRUE(redis_->Becomes({"EXISTS", cache::RemoteKeyName(ArtifactKey(0))}, "0"));
}

TEST_F(RemoteTierTest, WrongBytesAreNoHit) {
  absl::Status status = GetAfter([&](const std::string& name) {
    ASSERT_EQ(redis_->Call({"SETRANGE", name, "700", "y"}), "1176");
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(RemoteTierTest, ATruncatedValueIsNoHit) {
  for (const char* last : {"0", "175", "1174"}) {
    absl::Status status = GetAfter([&](const std::string& name) {
      redis_->Call({"SET", name, redis_->Call({"GETRANGE", name, "0", last})});
    });
    EXPECT_TRUE(absl::IsDataLoss(status)) << last << ": " << status;
  }
}

TEST_F(RemoteTierTest, AnotherEntrysValueIsNoHit) {
  auto tier = Open(url_);
  PutAndWait(*tier, ArtifactKey(1), EntryOf(1));
  absl::Status status = GetAfter([&](const std::string& name) {
    redis_->Call({"RENAME", cache::RemoteKeyName(ArtifactKey(1)), name});
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(RemoteTierTest, AValueOfAnotherTypeIsNoHit) {
  absl::Status status = GetAfter([&](const std::string& name) {
    redis_->Call({"DEL", name});
    redis_->Call({"RPUSH", name, "a", "b"});
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST_F(RemoteTierTest, AnotherSignersEntryIsAHitOnlyWhereItIsTrusted) {
  auto key = NewKey();
  auto stranger = Open(url_, [&](RemoteTierOptions& o) { o.signing_key = key.get(); });
  PutAndWait(*stranger, ArtifactKey(0), EntryOf(0));
  EXPECT_EQ(Open(url_)->store().Get(ArtifactKey(0)).status(),
            absl::PermissionDeniedError(FormatPublicKey(key->public_key())));
  auto trusting = Open(url_, [&](RemoteTierOptions& o) { o.trusted_keys = {key->public_key()}; });
  EXPECT_TRUE(trusting->store().Get(ArtifactKey(0)).ok());
}

TEST_F(RemoteTierTest, LargeEntriesAreNeitherPutNorRead) {
  auto large = Open(url_);
  auto small = Open(url_, [](RemoteTierOptions& o) { o.max_entry_bytes = 10000; });
  EXPECT_FALSE(small->store().Put(ArtifactKey(0), EntryOf(0, 10300)).ok());
  EXPECT_EQ(Written(WriteResult::kTooLarge), 1);
  PutAndWait(*large, ArtifactKey(0), EntryOf(0, 10300));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(small->store().Get(ArtifactKey(0)).ok());
  PutAndWait(*large, ArtifactKey(1), EntryOf(1, 10000));
  EXPECT_TRUE(small->store().Get(ArtifactKey(1)).ok()) << "the breaker is closed";
}

TEST_F(RemoteTierTest, AStalledServerCostsItsLimitAndAfterAFewReadsNothing) {
  auto tier = Open(url_, [](RemoteTierOptions& o) {
    o.connect_timeout = absl::Milliseconds(50);
    o.read_timeout = absl::Milliseconds(100);
  });
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  redis_->Stop();
  for (int i = 0; i < 5; ++i) {
    const absl::Time start = absl::Now();
    absl::Status status = tier->store().Get(ArtifactKey(0)).status();
    const absl::Duration took = absl::Now() - start;
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_LT(took, absl::Milliseconds(100) + kSlack);
  }
  EXPECT_EQ(tier->Counts().nodes.open, 1);
  // A probe now and then pays the limit; the others nothing.
  const absl::Time start = absl::Now();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(tier->store().Get(ArtifactKey(0)).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  redis_->Continue();
  EXPECT_TRUE(BecomesHit(*tier, ArtifactKey(0)));
  EXPECT_EQ(tier->Counts().nodes.closed, 1);
}

TEST_F(RemoteTierTest, WhatIsPutWhileTheServerIsAwayArrivesWhenItIsBack) {
  auto tier = Open(url_);
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  // The writer, too, has seen the answer: otherwise it would write it again.
  ASSERT_TRUE(Eventually(absl::Seconds(20), [&] { return Written(WriteResult::kWritten) == 1; }));
  redis_->Kill();
  EXPECT_FALSE(tier->store().Get(ArtifactKey(0)).ok());
  ASSERT_TRUE(tier->store().Put(ArtifactKey(1), EntryOf(1)).ok());
  EXPECT_FALSE(tier->store().Get(ArtifactKey(1)).ok());
  ASSERT_TRUE(redis_->StartAgain().ok());
  EXPECT_TRUE(BecomesHit(*tier, ArtifactKey(1)));
  const absl::Status lost = tier->store().Get(ArtifactKey(0)).status();
  EXPECT_TRUE(absl::IsNotFound(lost)) << "it was in memory: " << lost;
  EXPECT_EQ(Written(WriteResult::kWritten), 2);
}

TEST_F(RemoteTierTest, AFullServerRefusesWritesAndServesHits) {
  auto tier = Open(url_);
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  redis_->Call({"CONFIG", "SET", "maxmemory", "1"});
  ASSERT_TRUE(tier->store().Put(ArtifactKey(1), EntryOf(1)).ok());
  EXPECT_TRUE(Eventually(absl::Seconds(20), [&] { return Written(WriteResult::kFailed) == 1; }));
  EXPECT_TRUE(tier->store().Get(ArtifactKey(0)).ok());
}

TEST_F(RemoteTierTest, LogsInAndSelectsItsDatabase) {
  ASSERT_NO_FATAL_FAILURE(StartRedis({"--requirepass", "p@ss:word"}));
  const std::string at = absl::StrCat("p%40ss%3Aword@", redis_->address());
  auto tier = Open(absl::StrCat("redis://:", at, "/3"));
  PutAndWait(*tier, ArtifactKey(0), EntryOf(0));
  EXPECT_TRUE(Open(absl::StrCat("redis://default:", at, "/3"))->store().Get(ArtifactKey(0)).ok());
  EXPECT_TRUE(
      absl::IsNotFound(Open(absl::StrCat("redis://:", at))->store().Get(ArtifactKey(0)).status()));
  for (const std::string& wrong : {absl::StrCat("redis://:x@", redis_->address()),
                                   absl::StrCat("redis://", redis_->address())}) {
    absl::Status status = Open(wrong)->store().Get(ArtifactKey(0)).status();
    EXPECT_FALSE(status.ok()) << wrong;
    EXPECT_FALSE(absl::IsNotFound(status)) << wrong;
  }
}

TEST_F(RemoteTierTest, LeasesAreHeldByOneServerUntilReleaseOrExpiry) {
  auto one = Open(url_);
  auto other = Open(url_);
  const cache::Key key = ArtifactKey(0);
  ASSERT_EQ(one->leases().Acquire(key, absl::Seconds(60)), LeaseOutcome::kHeld);
  EXPECT_EQ(other->leases().Acquire(key, absl::Seconds(60)), LeaseOutcome::kBusy);
  EXPECT_EQ(other->leases().Acquire(ArtifactKey(1), absl::Seconds(60)), LeaseOutcome::kHeld);
  EXPECT_FALSE(other->leases().Renew(key, absl::Seconds(60)));
  other->leases().Release(key);
  EXPECT_TRUE(one->leases().Renew(key, absl::Seconds(60)));
  // What is put before a release is there when another gets the lease.
  ASSERT_TRUE(one->store().Put(key, EntryOf(0)).ok());
  one->leases().Release(key);
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (other->leases().Acquire(key, absl::Milliseconds(200)) != LeaseOutcome::kHeld) {
    ASSERT_LT(absl::Now(), end);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(other->store().Get(key).ok());
  // Its holder says nothing more: it ends by itself.
  EXPECT_TRUE(redis_->Becomes({"EXISTS", cache::LeaseKeyName(key)}, "0"));
  EXPECT_FALSE(other->leases().Renew(key, absl::Seconds(60)));
  EXPECT_EQ(one->leases().Acquire(key, absl::Seconds(60)), LeaseOutcome::kHeld);
}

TEST_F(RemoteTierTest, LeasesOfAServerThatIsAwayAreUnavailable) {
  auto tier = Open(url_);
  redis_->Kill();
  EXPECT_EQ(tier->leases().Acquire(ArtifactKey(0), absl::Seconds(1)), LeaseOutcome::kUnavailable);
}

TEST_F(RemoteTierTest, NoFailureServesWrongBytesOrHoldsAReaderUp) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::minstd_rand random(seed);
  auto tier = Open(url_, [](RemoteTierOptions& o) {
    o.connect_timeout = absl::Milliseconds(50);
    o.read_timeout = absl::Milliseconds(100);
  });
  constexpr int kEntries = 20;
  std::atomic<bool> stop = false;
  std::atomic<int> hits = 0;
  std::atomic<int> wrong = 0;
  std::atomic<int> late = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; !stop; ++i) {
        const int number = i % kEntries;
        if (i % 7 == 0)
          tier->store().Put(ArtifactKey(number), EntryOf(number, 50000)).IgnoreError();
        const absl::Time start = absl::Now();
        auto found = tier->store().Get(ArtifactKey(number));
        if (absl::Now() - start > absl::Milliseconds(100) + absl::Seconds(1)) ++late;
        if (found.ok()) ++hits;
        if (found.ok() && found->entry->bytes != EntryOf(number, 50000)->bytes) ++wrong;
        absl::SleepFor(absl::Milliseconds(1));
      }
    });
  }
  for (int round = 0; round < 12; ++round) {
    absl::SleepFor(absl::Milliseconds(100 + random() % 100));
    switch (random() % 3) {
      case 0:  // a stall, longer than the limit or not
        redis_->Stop();
        absl::SleepFor(absl::Milliseconds(random() % 300));
        redis_->Continue();
        break;
      case 1:
        redis_->Kill();
        EXPECT_TRUE(redis_->StartAgain().ok());
        break;
      default:  // damage
        for (int i = 0; i < kEntries; ++i) {
          redis_->Call({"SETRANGE", cache::RemoteKeyName(ArtifactKey(i)),
                        absl::StrCat(random() % 50000), absl::StrCat(random())});
        }
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(late, 0);
  EXPECT_GT(hits, 0);
  RecordProperty("hits", hits);
}

TEST_F(RemoteTierTest, TheNextOfSeveralAddressesIsUsedWhereOneFails) {
  auto tier = Open(absl::StrCat("redis://127.0.0.1:", FreePort(), ",", redis_->address()));
  ASSERT_TRUE(tier->store().Put(ArtifactKey(0), EntryOf(0)).ok());
  EXPECT_TRUE(BecomesHit(*tier, ArtifactKey(0)));
}

}  // namespace
}  // namespace kiln::integration
