#include "cache/remote/breaker.h"

#include <gtest/gtest.h>

namespace kiln::cache {
namespace {

using std::chrono::milliseconds;

class BreakerTest : public ::testing::Test {
 protected:
  void Fail(int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(breaker_.Admit(now_));
      breaker_.Done(false, now_);
    }
  }
  Breaker breaker_{
      {.failures_to_open = 3, .min_open = absl::Seconds(1), .max_open = absl::Seconds(4)}};
  SteadyTime now_{std::chrono::hours(1)};
};

TEST_F(BreakerTest, OpensAfterFailuresInARowOnly) {
  Fail(2);
  ASSERT_TRUE(breaker_.Admit(now_));
  EXPECT_FALSE(breaker_.Done(true, now_));
  Fail(2);
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
  ASSERT_TRUE(breaker_.Admit(now_));
  EXPECT_TRUE(breaker_.Done(false, now_)) << "the change is told once";
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
  EXPECT_FALSE(breaker_.Admit(now_));
}

TEST_F(BreakerTest, LetsOneProbeThroughAndClosesOnItsSuccess) {
  Fail(3);
  EXPECT_FALSE(breaker_.Admit(now_ + milliseconds(799)));
  now_ += milliseconds(1000);
  EXPECT_TRUE(breaker_.Admit(now_));
  EXPECT_EQ(breaker_.state(), BreakerState::kHalfOpen);
  EXPECT_FALSE(breaker_.Admit(now_)) << "one probe at a time";
  EXPECT_TRUE(breaker_.Done(true, now_));
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed);
  Fail(2);
  EXPECT_EQ(breaker_.state(), BreakerState::kClosed) << "it counts anew";
}

TEST_F(BreakerTest, StaysOpenLongerEachTimeThatAProbeFailsUpToALimit) {
  Fail(3);
  for (int open_ms : {1000, 2000, 4000, 4000}) {
    EXPECT_FALSE(breaker_.Admit(now_ + milliseconds(open_ms * 79 / 100))) << open_ms;
    now_ += milliseconds(open_ms);
    ASSERT_TRUE(breaker_.Admit(now_)) << open_ms;
    EXPECT_FALSE(breaker_.Done(false, now_)) << "it was open before";
  }
}

TEST_F(BreakerTest, RequestsFromBeforeItOpenedChangeNothing) {
  ASSERT_TRUE(breaker_.Admit(now_));
  Fail(3);
  EXPECT_FALSE(breaker_.Done(true, now_));
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
}

}  // namespace
}  // namespace kiln::cache
