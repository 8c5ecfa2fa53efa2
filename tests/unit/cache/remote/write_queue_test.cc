#include "cache/remote/write_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;

Key KeyOf(int i) {
  return {EntryKind::kKernel, Sha256(absl::StrCat(i))};
}

// Collects what was written and what became of each; writes wait while it is held.
class WriteQueueTest : public ::testing::Test {
 protected:
  std::unique_ptr<WriteQueue> Start(WriteQueueOptions options,
                                    WriteQueue::ReadBack read_back = nullptr) {
    options.min_pause = absl::Milliseconds(1);
    return std::make_unique<WriteQueue>(
        options,
        [this](const Key& key, const Entry& entry) {
          absl::MutexLock lock(&mu_);
          ++begun_;
          mu_.Await(absl::Condition(&free_));
          if (status_.ok()) written_.push_back(entry.bytes);
          return status_;
        },
        std::move(read_back),
        [this](WriteResult result) {
          absl::MutexLock lock(&mu_);
          ++results_[static_cast<int>(result)];
        });
  }
  void SetFree(bool free, absl::Status status = absl::OkStatus()) {
    absl::MutexLock lock(&mu_);
    free_ = free;
    status_ = status;
  }
  int Results(WriteResult result) {
    absl::MutexLock lock(&mu_);
    return results_[static_cast<int>(result)];
  }
  bool Await(const std::function<bool()>& condition) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&condition), absl::Seconds(10));
  }

  absl::Mutex mu_;
  bool free_ = true;
  absl::Status status_;
  int begun_ = 0;
  std::vector<std::string> written_;
  int results_[5] = {};
};

TEST_F(WriteQueueTest, WritesInOrderAndInTheBackground) {
  SetFree(false);
  auto queue = Start({});
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(queue->Add(KeyOf(i), MakeEntry(absl::StrCat(i))).ok());
  }
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[0] == 5; }));
  EXPECT_THAT(written_, ElementsAre("0", "1", "2", "3", "4"));
  EXPECT_EQ(queue->size_bytes(), 0);
}

TEST_F(WriteQueueTest, DropsAndCountsWhatDoesNotFit) {
  SetFree(false);
  auto queue = Start({.max_entries = 2, .max_bytes = 100});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return begun_ == 1; }));  // it is being written: two more may wait
  ASSERT_TRUE(queue->Add(KeyOf(1), MakeEntry("b")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue->Add(KeyOf(2), MakeEntry(std::string(99, 'c')))))
      << "what is being written counts";
  ASSERT_TRUE(queue->Add(KeyOf(3), MakeEntry("d")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue->Add(KeyOf(4), MakeEntry("e"))));
  EXPECT_EQ(Results(WriteResult::kDropped), 2);
  SetFree(true);
  queue.reset();
  EXPECT_THAT(written_, ElementsAre("a", "b", "d"));
  EXPECT_EQ(Results(WriteResult::kWritten), 3);
}

TEST_F(WriteQueueTest, OneThatIsLargerThanTheQueueWaitsAlone) {
  SetFree(false);
  auto queue = Start({.max_bytes = 10});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry(std::string(50, 'a'))).ok());
  EXPECT_FALSE(queue->Add(KeyOf(1), MakeEntry("b")).ok());
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[0] == 1; }));
}

// Entries that are deferred are read back from a map.
class DeferringTest : public WriteQueueTest {
 protected:
  std::unique_ptr<WriteQueue> StartDeferring(WriteQueueOptions options) {
    return Start(options, [this](const Key& key) -> absl::StatusOr<EntryPtr> {
      absl::MutexLock lock(&mu_);
      auto it = disk_.find(key.digest);
      if (it == disk_.end()) return absl::NotFoundError("evicted");
      return MakeEntry(it->second);
    });
  }
  std::map<Digest, std::string> disk_;
};

TEST_F(DeferringTest, WhatDoesNotFitIsReadBackAndWrittenOnceThereIsRoom) {
  SetFree(false);
  auto queue = StartDeferring({.max_entries = 1});
  for (int i = 0; i < 5; ++i) disk_[KeyOf(i).digest] = absl::StrCat(i);
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("0")).ok());
  ASSERT_TRUE(Await([&] { return begun_ == 1; }));
  for (int i = 1; i < 5; ++i) {
    EXPECT_TRUE(queue->Add(KeyOf(i), MakeEntry(absl::StrCat(i))).ok());
  }
  EXPECT_TRUE(queue->Add(KeyOf(4), MakeEntry("4")).ok()) << "once more";
  EXPECT_EQ(queue->entries(), 1);
  EXPECT_EQ(queue->deferred(), 3);
  EXPECT_EQ(Results(WriteResult::kDeferred), 4);
  {
    absl::MutexLock lock(&mu_);
    disk_.erase(KeyOf(3).digest);
  }
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[static_cast<int>(WriteResult::kDropped)] == 1; }));
  ASSERT_TRUE(Await([&] { return results_[0] == 4; }));
  EXPECT_THAT(written_, ElementsAre("0", "1", "2", "4"));
  EXPECT_EQ(queue->deferred(), 0);
}

TEST_F(DeferringTest, WhatATierThatWasAwayDidNotTakeArrivesWhenItIsBack) {
  SetFree(true, absl::UnavailableError("away"));
  disk_[KeyOf(0).digest] = "a";
  auto queue = StartDeferring({.max_attempts = 2});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return begun_ >= 5; })) << "it is tried on and on";
  EXPECT_EQ(queue->size_bytes(), 0) << "and no longer takes memory";
  EXPECT_EQ(Results(WriteResult::kDeferred), 1);
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[0] == 1; }));
  EXPECT_THAT(written_, ElementsAre("a"));
}

TEST_F(DeferringTest, OnlySoManyKeysAreKept) {
  SetFree(false);
  auto queue = StartDeferring({.max_entries = 1, .max_deferred = 2});
  for (int i = 0; i < 4; ++i) disk_[KeyOf(i).digest] = absl::StrCat(i);
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("0")).ok());
  ASSERT_TRUE(Await([&] { return begun_ == 1; }));
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(queue->Add(KeyOf(i), MakeEntry("x")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(queue->Add(KeyOf(4), MakeEntry("x"))));
  EXPECT_EQ(Results(WriteResult::kDropped), 1);
  queue->Forget(KeyOf(3));
  EXPECT_EQ(queue->deferred(), 1);
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[0] == 3; }));
}

TEST_F(DeferringTest, TheEndWritesNothingThatWasDeferred) {
  SetFree(false);
  auto queue = StartDeferring({.max_entries = 1, .flush_limit = absl::Milliseconds(1)});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("0")).ok());
  ASSERT_TRUE(Await([&] { return begun_ == 1; }));
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(queue->Add(KeyOf(i), MakeEntry("x")).ok());
  SetFree(true, absl::UnavailableError("away"));
  queue.reset();
  EXPECT_GE(Results(WriteResult::kDropped), 2);
}

TEST_F(WriteQueueTest, TriesAgainWhileTheTierIsAway) {
  SetFree(true, absl::UnavailableError("away"));
  auto queue = Start({.max_attempts = 100000});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return begun_ >= 3; }));
  SetFree(true);
  ASSERT_TRUE(Await([&] { return results_[0] == 1; }));
  EXPECT_THAT(written_, ElementsAre("a"));
}

TEST_F(WriteQueueTest, GivesAnEntryUpAfterItsAttempts) {
  SetFree(true, absl::DeadlineExceededError("slow"));
  auto queue = Start({.max_attempts = 3});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return results_[static_cast<int>(WriteResult::kFailed)] == 1; }));
  EXPECT_EQ(begun_, 3);
  EXPECT_EQ(queue->size_bytes(), 0);
}

TEST_F(WriteQueueTest, ARefusalIsFinal) {
  SetFree(true, absl::FailedPreconditionError("OOM"));
  auto queue = Start({});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return results_[static_cast<int>(WriteResult::kFailed)] == 1; }));
  EXPECT_EQ(begun_, 1);
}

TEST_F(WriteQueueTest, ForgottenEntriesAreNotWritten) {
  SetFree(false);
  auto queue = Start({});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  ASSERT_TRUE(Await([&] { return begun_ == 1; }));
  ASSERT_TRUE(queue->Add(KeyOf(1), MakeEntry("b")).ok());
  queue->Forget(KeyOf(1));
  EXPECT_EQ(queue->size_bytes(), 1);
  SetFree(true);
  queue.reset();
  EXPECT_THAT(written_, ElementsAre("a"));
}

TEST_F(WriteQueueTest, ActionsComeAfterTheEntriesBeforeThemEvenThoseThatAreTriedAgain) {
  SetFree(true, absl::UnavailableError("away"));
  auto queue = Start({.max_attempts = 100000});
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  bool had_written = false;
  absl::Notification ran;
  queue->After([&] {
    absl::MutexLock lock(&mu_);
    had_written = !written_.empty();
    ran.Notify();
  });
  ASSERT_TRUE(Await([&] { return begun_ >= 3; }));
  EXPECT_FALSE(ran.HasBeenNotified());
  SetFree(true);
  ran.WaitForNotification();
  EXPECT_TRUE(had_written);
}

TEST_F(WriteQueueTest, AnActionAfterNothingRunsAtOnceAndNoneIsLostAtTheEnd) {
  auto queue = Start({});
  absl::Notification ran;
  queue->After([&] { ran.Notify(); });
  ran.WaitForNotification();
  SetFree(false);
  ASSERT_TRUE(queue->Add(KeyOf(0), MakeEntry("a")).ok());
  bool last = false;
  queue->After([&] { last = true; });
  SetFree(true);
  queue.reset();
  EXPECT_TRUE(last);
}

TEST_F(WriteQueueTest, TheEndFlushesAndDoesNotWaitForATierThatIsAway) {
  SetFree(true, absl::UnavailableError("away"));
  auto queue = Start({.max_attempts = 100000});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(queue->Add(KeyOf(i), MakeEntry("a")).ok());
  queue.reset();
  EXPECT_EQ(Results(WriteResult::kDropped), 50);
}

}  // namespace
}  // namespace kiln::cache
