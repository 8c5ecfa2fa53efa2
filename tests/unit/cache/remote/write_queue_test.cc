#include "cache/remote/write_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  std::unique_ptr<WriteQueue> Start(WriteQueueOptions options) {
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
  int results_[4] = {};
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
