#include "server/jobs/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kiln/v1/error.pb.h"
#include "proto/base/error_detail.h"

namespace kiln::server {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  static void ExpectBusy(const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    ASSERT_TRUE(GetDetail(status));
    EXPECT_EQ(GetDetail(status)->reason(), v1::ErrorDetail::REASON_QUEUE_FULL);
    EXPECT_GT(GetDetail(status)->retry_after_ms(), 0);
  }
  Metrics metrics_{"v", "b"};
  Admission admission_{{.max_calls = 2, .tenant_max_interprets = 1, .max_request_bytes = 100},
                       &metrics_};
};

TEST_F(AdmissionTest, CallsAreBoundedAndHitsApartFromTheRest) {
  auto one = admission_.Enter(CallKind::kCompile, "a");
  auto two = admission_.Enter(CallKind::kInterpret, "a");
  ASSERT_TRUE(one.ok() && two.ok());
  ExpectBusy(admission_.Enter(CallKind::kCompile, "b").status());
  EXPECT_TRUE(admission_.Enter(CallKind::kFetch, "b").ok());
  one->Leave();
  EXPECT_TRUE(admission_.Enter(CallKind::kCompile, "b").ok());
}

TEST_F(AdmissionTest, OneTenantDoesNotInterpretForAll) {
  auto own = admission_.Enter(CallKind::kInterpret, "a");
  ASSERT_TRUE(own.ok());
  ExpectBusy(admission_.Enter(CallKind::kInterpret, "a").status());
  EXPECT_TRUE(admission_.Enter(CallKind::kInterpret, "b").ok());
  own->Leave();
  EXPECT_TRUE(admission_.Enter(CallKind::kInterpret, "a").ok());
}

TEST_F(AdmissionTest, BytesAreBoundedButForASingleRequest) {
  auto large = admission_.Hold(1000, "a");
  ASSERT_TRUE(large.ok());
  ExpectBusy(admission_.Hold(1, "a").status());
  large->Leave();
  auto first = admission_.Hold(60, "a");
  ASSERT_TRUE(first.ok());
  ExpectBusy(admission_.Hold(60, "b").status());
  EXPECT_TRUE(admission_.Hold(40, "b").ok());
}

TEST_F(AdmissionTest, ADrainWaitsForWorkThenSendsEveryoneAway) {
  auto compile = admission_.Enter(CallKind::kCompile, "a");
  admission_.StartDrain();
  EXPECT_TRUE(absl::IsUnavailable(admission_.Enter(CallKind::kInterpret, "a").status()));
  EXPECT_FALSE(admission_.WaitUntilWorkDone(absl::Milliseconds(5)));
  auto hit = admission_.Enter(CallKind::kFetch, "a");
  ASSERT_TRUE(hit.ok());
  compile->Leave();
  EXPECT_TRUE(admission_.WaitUntilWorkDone(absl::Seconds(30)));
  admission_.Close();
  absl::Status away = admission_.Enter(CallKind::kFetch, "a").status();
  EXPECT_TRUE(absl::IsUnavailable(away));
  EXPECT_EQ(GetDetail(away)->reason(), v1::ErrorDetail::REASON_DRAINING);
  EXPECT_TRUE(admission_.WaitUntilQuiet(absl::Milliseconds(20), absl::Seconds(30)));
  EXPECT_FALSE(admission_.WaitUntilEmpty(absl::Milliseconds(5)));
  hit->Leave();
  EXPECT_TRUE(admission_.WaitUntilEmpty(absl::Seconds(30)));
}

}  // namespace
}  // namespace kiln::server
