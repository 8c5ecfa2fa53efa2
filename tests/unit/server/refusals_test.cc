#include "server/jobs/refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {
namespace {

TEST(Refusals, TwoDeathsRefuseAGraphAndOneDoesNot) {
  Refusals refusals(absl::Seconds(60));
  Digest key = Sha256("a");
  refusals.RecordDeaths(key, 1);
  EXPECT_TRUE(refusals.Check(key).ok());
  refusals.RecordDeaths(key, 1);
  absl::Status status = refusals.Check(key);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  auto detail = GetDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->reason(), v1::ErrorDetail::REASON_WORKER_CRASHED);
  EXPECT_GT(detail->retry_after_ms(), 50000);
  EXPECT_LE(detail->retry_after_ms(), 60000);
  EXPECT_TRUE(refusals.Check(Sha256("b")).ok());
}

TEST(Refusals, OneDeathThatEndedItsJobRefusesAGraph) {
  Refusals refusals(absl::Seconds(60));
  Digest key = Sha256("a");
  refusals.Refuse(key, 1);
  absl::Status status = refusals.Check(key);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("ended 1 compile process;"));
}

TEST(Refusals, ClearForgivesAllAndCountsTheRefused) {
  Refusals refusals(absl::Seconds(60));
  refusals.Refuse(Sha256("a"), 1);
  refusals.RecordDeaths(Sha256("b"), 2);
  refusals.RecordDeaths(Sha256("c"), 1);
  EXPECT_EQ(refusals.Clear(), 2);
  for (absl::string_view key : {"a", "b", "c"}) EXPECT_TRUE(refusals.Check(Sha256(key)).ok());
  EXPECT_EQ(refusals.Clear(), 0);
}

TEST(Refusals, SuccessForgives) {
  Refusals refusals(absl::Seconds(60));
  Digest key = Sha256("a");
  refusals.RecordDeaths(key, 2);
  refusals.Forget(key);
  EXPECT_TRUE(refusals.Check(key).ok());
}

TEST(Refusals, TimeForgives) {
  Refusals refusals(absl::ZeroDuration());
  Digest key = Sha256("a");
  refusals.RecordDeaths(key, 2);
  EXPECT_TRUE(refusals.Check(key).ok());
}

}  // namespace
}  // namespace kiln::server
