#include "proto/base/scheduling.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace kiln {
namespace {

int ThreadNiceness() {
  return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
}

// Each in a thread of its own: niceness does not come back.
TEST(SchedulingTest, WhoStandsBackIsABatchThreadAndItsChildrenToo) {
  const int before = ThreadNiceness();
  std::thread([&] {
    StandBack();
    EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
    EXPECT_GT(ThreadNiceness(), before);
    std::thread([] { EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH); }).join();
  }).join();
  EXPECT_EQ(ThreadNiceness(), before) << "of that thread alone";
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

TEST(SchedulingTest, WhoGoesFirstKeepsItsPolicyAndNiceness) {
  std::thread([] {
    const int niceness = ThreadNiceness() + 3;
    StandBackBy(niceness);
    GoFirst();
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
    EXPECT_EQ(ThreadNiceness(), niceness);
  }).join();
}

TEST(SchedulingTest, StandingBackByANicenessIsTheThreadsAlone) {
  const int before = ThreadNiceness();
  std::thread([&] {
    StandBackBy(before + 7);
    EXPECT_EQ(ThreadNiceness(), before + 7);
  }).join();
  EXPECT_EQ(ThreadNiceness(), before);
}

}  // namespace
}  // namespace kiln
