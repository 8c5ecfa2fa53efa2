#include "client/retry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln {
namespace {

absl::Status WithHint(absl::Status status, int64_t retry_after_ms) {
  v1::ErrorDetail detail;
  detail.set_retry_after_ms(retry_after_ms);
  return WithDetail(std::move(status), detail);
}

TEST(Judge, OnlyWhatCanEndOtherwiseIsTriedAgain) {
  EXPECT_EQ(Judge(absl::UnavailableError("")), Verdict::kElsewhere);
  EXPECT_EQ(Judge(absl::DeadlineExceededError("")), Verdict::kElsewhere);
  EXPECT_EQ(Judge(WithHint(absl::ResourceExhaustedError(""), 50)), Verdict::kLater);
  EXPECT_EQ(RetryAfter(WithHint(absl::ResourceExhaustedError(""), 50)), absl::Milliseconds(50));
  EXPECT_EQ(Judge(absl::ResourceExhaustedError("a message too large")), Verdict::kAnswer);
  EXPECT_EQ(RetryAfter(WithHint(absl::ResourceExhaustedError(""), -5)), absl::ZeroDuration());
  for (const absl::Status& status :
       {absl::OkStatus(), absl::InvalidArgumentError(""), absl::NotFoundError(""),
        absl::CancelledError(""), absl::DataLossError(""), absl::InternalError(""),
        absl::UnauthenticatedError(""), absl::PermissionDeniedError("")}) {
    EXPECT_EQ(Judge(status), Verdict::kAnswer) << status;
  }
}

TEST(Backoff, GrowsToItsLimitAndIsSpreadOverAllOfIt) {
  for (int round = 0; round < 40; ++round) {
    const absl::Duration most =
        std::min(absl::Seconds(2), absl::Milliseconds(100) * (1 << std::min(round, 10)));
    absl::Duration least_seen = absl::InfiniteDuration(), most_seen;
    for (int i = 0; i < 400; ++i) {
      const absl::Duration pause = Backoff(round);
      least_seen = std::min(least_seen, pause);
      most_seen = std::max(most_seen, pause);
    }
    EXPECT_GE(least_seen, absl::ZeroDuration());
    EXPECT_LE(most_seen, most);
    EXPECT_LT(least_seen, most / 5) << "round " << round;
    EXPECT_GT(most_seen, most * 4 / 5) << "round " << round;
  }
}

TEST(Jittered, NeverComesBeforeTheHint) {
  for (int i = 0; i < 400; ++i) {
    const absl::Duration wait = Jittered(absl::Milliseconds(100));
    EXPECT_GE(wait, absl::Milliseconds(100));
    EXPECT_LE(wait, absl::Milliseconds(150));
  }
}

TEST(RetryBudget, IsATenthOfTheCallsAfterTenAtOnce) {
  RetryBudget budget;
  int retries = 0;
  while (budget.TakeRetry()) ++retries;
  EXPECT_EQ(retries, 10);
  retries = 0;
  for (int call = 0; call < 1000; ++call) {
    budget.CountCall();
    if (budget.TakeRetry()) ++retries;
  }
  EXPECT_NEAR(retries, 100, 1);
}

}  // namespace
}  // namespace kiln
