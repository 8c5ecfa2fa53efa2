#include "client/runtime/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

namespace kiln::runtime {
namespace {

struct Counts {
  explicit Counts(long tasks, int threads) : done(tasks), inside(threads) {}
  std::vector<int> done;  // by task: each is written by one thread only
  std::vector<std::atomic<int>> inside;
  std::atomic<bool> shared_thread{false};
};

void CountTask(void* closure, long task, int thread) {
  auto* counts = static_cast<Counts*>(closure);
  if (counts->inside[thread].fetch_add(1) != 0) counts->shared_thread = true;
  ++counts->done[task];
  counts->inside[thread].fetch_sub(1);
}

TEST(ThreadPool, RunsEachTaskOnceAndNeverTwoOnOneThreadNumber) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    ASSERT_TRUE(pool.TryAcquire());
    for (long tasks : {0L, 1L, 2L, 3L, 64L, 1000L}) {
      for (int round = 0; round < 50; ++round) {
        Counts counts(tasks, threads);
        pool.ParallelFor(tasks, CountTask, &counts);
        for (int done : counts.done) ASSERT_EQ(done, 1);
        ASSERT_FALSE(counts.shared_thread);
      }
    }
    pool.Release();
  }
}

TEST(ThreadPool, WorkersTakePartAfterTheySlept) {
  ThreadPool pool(2);
  ASSERT_TRUE(pool.TryAcquire());
  // The caller's task ends only when a worker has run one: this hangs if none wakes up. The loop
  // lets the worker fall asleep in some rounds and not in others.
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    pool.ParallelFor(
        2,
        [](void* closure, long, int) {
          auto* count = static_cast<std::atomic<int>*>(closure);
          count->fetch_add(1);
          while (count->load() < 2) std::this_thread::yield();
        },
        &arrived);
    EXPECT_EQ(arrived.load(), 2);
    for (int i = 0; i < round * 10; ++i) std::this_thread::yield();
  }
}

TEST(ThreadPool, BelongsToOneRunAtATime) {
  ThreadPool pool(2);
  EXPECT_TRUE(pool.TryAcquire());
  EXPECT_FALSE(pool.TryAcquire());
  pool.Release();
  EXPECT_TRUE(pool.TryAcquire());
}

TEST(ThreadPool, EndsWhileWorkersSpinOrSleep) {
  for (int i = 0; i < 30; ++i) ThreadPool pool(3);
}

TEST(ThreadPool, AContextWithoutAPoolRunsInline) {
  KilnCpuContext context{};
  Counts counts(10, 1);
  ContextParallelFor(&context, 10, CountTask, &counts);
  for (int done : counts.done) EXPECT_EQ(done, 1);
}

TEST(ThreadPool, SharedPoolsAreOnePerSize) {
  EXPECT_EQ(&ThreadPool::Shared(2), &ThreadPool::Shared(2));
  EXPECT_NE(&ThreadPool::Shared(2), &ThreadPool::Shared(3));
  EXPECT_EQ(ThreadPool::Shared(3).threads(), 3);
}

}  // namespace
}  // namespace kiln::runtime
