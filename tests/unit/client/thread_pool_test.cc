#include "client/runtime/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
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

// An OpenMP runtime that starts its threads anew each time.
void StartAndJoin(void (*fn)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(fn, data);
  fn(data);
  for (std::thread& other : others) other.join();
}

TEST(ThreadPool, BorrowsTheThreadsOfAnOpenMpRuntime) {
  ThreadPool pool(3, StartAndJoin);
  for (long tasks : {0L, 1L, 2L, 64L}) {
    for (int round = 0; round < 20; ++round) {
      Counts counts(tasks, 3);
      pool.ParallelFor(tasks, CountTask, &counts);
      for (int done : counts.done) ASSERT_EQ(done, 1);
      ASSERT_FALSE(counts.shared_thread);
    }
  }
}

TEST(ThreadPool, CallersDoAllTheWorkInAChildOfFork) {
  ThreadPool& pool = ThreadPool::Shared(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Counts counts(10, 2);
    pool.ParallelFor(10, CountTask, &counts);
    bool all = true;
    for (int done : counts.done) all &= done == 1;
    _exit(all ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ThreadPool, SharedPoolsAreOnePerSize) {
  EXPECT_EQ(&ThreadPool::Shared(2), &ThreadPool::Shared(2));
  EXPECT_NE(&ThreadPool::Shared(2), &ThreadPool::Shared(3));
  EXPECT_EQ(ThreadPool::Shared(3).threads(), 3);
}

}  // namespace
}  // namespace kiln::runtime
