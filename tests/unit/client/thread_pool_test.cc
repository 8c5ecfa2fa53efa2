#include "client/runtime/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
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
    ThreadPool::Run* run = pool.Acquire();
    ASSERT_NE(run, nullptr);
    for (long tasks : {0L, 1L, 2L, 3L, 64L, 1000L}) {
      for (int round = 0; round < 50; ++round) {
        Counts counts(tasks, threads);
        run->ParallelFor(tasks, CountTask, &counts);
        for (int done : counts.done) ASSERT_EQ(done, 1);
        ASSERT_FALSE(counts.shared_thread);
      }
    }
    run->Release();
  }
}

TEST(ThreadPool, DoesWithoutThreadsThatTheSystemDoesNotGive) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;  // root has as many as it likes
    if (geteuid() == 0 && setuid(kNobody) != 0) _exit(2);
    const rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
    ThreadPool pool(4);
    Counts counts(100, 4);
    pool.Acquire()->ParallelFor(100, CountTask, &counts);
    for (int done : counts.done) {
      if (done != 1) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ThreadPool, WorkersTakePartAfterTheySlept) {
  ThreadPool pool(2);
  ThreadPool::Run* run = pool.Acquire();
  ASSERT_NE(run, nullptr);
  // The caller's task ends only when a worker has run one: this hangs if none wakes up. The loop
  // lets the worker fall asleep in some rounds and not in others.
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    run->ParallelFor(
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

TEST(ThreadPool, HasPlacesForSoManyRuns) {
  ThreadPool pool(2);
  std::vector<ThreadPool::Run*> runs;
  for (int i = 0; i < ThreadPool::kMaxRuns; ++i) {
    runs.push_back(pool.Acquire());
    ASSERT_NE(runs.back(), nullptr);
  }
  EXPECT_EQ(pool.Acquire(), nullptr);
  runs[3]->Release();
  EXPECT_EQ(pool.Acquire(), runs[3]);
}

// Runs of several threads: each of a run's tasks once, no two on one thread number of that run.
void RunBesideOthers(ThreadPool& pool, int threads) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&pool, threads] {
      for (int round = 0; round < 100; ++round) {
        ThreadPool::Run* run = pool.Acquire();
        ASSERT_NE(run, nullptr);
        for (long tasks : {2L, 3L, 64L, 500L}) {
          Counts counts(tasks, threads);
          run->ParallelFor(tasks, CountTask, &counts);
          for (int done : counts.done) ASSERT_EQ(done, 1);
          ASSERT_FALSE(counts.shared_thread);
        }
        run->Release();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, RunsOfSeveralThreadsShareIt) {
  ThreadPool pool(3);
  RunBesideOthers(pool, 3);
}

TEST(ThreadPool, AWorkerHelpsARunThatCameWhileItWorkedForAnother) {
  ThreadPool pool(2);
  struct Help {
    std::atomic<int> own{0};
    std::atomic<int>* others = nullptr;
  };
  Help helps[2];
  helps[0].others = &helps[1].own;
  helps[1].others = &helps[0].own;
  auto body = [](void* closure, long, int thread) {
    auto* help = static_cast<Help*>(closure);
    if (thread != 0) help->own.fetch_add(1);
    // The callers stay in their first task until the one worker has done one for each.
    while (thread == 0 && (help->own.load() == 0 || help->others->load() == 0)) {
      std::this_thread::yield();
    }
  };
  ThreadPool::Run* first = pool.Acquire();
  ThreadPool::Run* second = pool.Acquire();
  std::thread other([&] { second->ParallelFor(3, body, &helps[1]); });
  first->ParallelFor(3, body, &helps[0]);
  other.join();
  EXPECT_GE(helps[0].own.load(), 1);
  EXPECT_GE(helps[1].own.load(), 1);
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
  ThreadPool::Run* run = pool.Acquire();
  for (long tasks : {0L, 1L, 2L, 64L}) {
    for (int round = 0; round < 20; ++round) {
      Counts counts(tasks, 3);
      run->ParallelFor(tasks, CountTask, &counts);
      for (int done : counts.done) ASSERT_EQ(done, 1);
      ASSERT_FALSE(counts.shared_thread);
    }
  }
}

TEST(ThreadPool, RunsOfSeveralThreadsShareAnOpenMpRuntime) {
  ThreadPool pool(3, StartAndJoin);
  RunBesideOthers(pool, 3);
}

std::atomic<unsigned> asked_for{0};

TEST(ThreadPool, OfAnOpenMpRuntimeEachRunAsksForItsPart) {
  ThreadPool pool(8, [](void (*fn)(void*), void* data, unsigned threads, unsigned) {
    asked_for = threads;
    fn(data);
  });
  ThreadPool::Run* run = pool.Acquire();
  for (unsigned part : {8u, 4u, 2u}) {
    Counts counts(64, 8);
    run->ParallelFor(64, CountTask, &counts);
    EXPECT_EQ(asked_for.load(), part);
    for (int i = part == 8 ? 1 : 2; i > 0; --i) ASSERT_NE(pool.Acquire(), nullptr);
  }
}

TEST(ThreadPool, CallersDoAllTheWorkInAChildOfFork) {
  ThreadPool& pool = ThreadPool::Shared(2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Counts counts(10, 2);
    pool.Acquire()->ParallelFor(10, CountTask, &counts);
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
