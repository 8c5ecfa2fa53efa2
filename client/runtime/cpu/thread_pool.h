// The threads that kernels run on.
//
// A pool of N runs work on N threads: N - 1 of its own and the caller, who always takes part. Tasks
// are handed out one by one from a counter. A thread of the pool that is late (asleep, or not
// scheduled) is not waited for: the caller closes the job when no task is left and waits only for
// threads that took one. Idle threads spin for about 30 us and then sleep on a futex, so that a run
// of many short kernels wakes them once.
//
// Runs of several programs at a time share the pool's threads: while there are several, a thread
// takes one task of one run, then one of the next.
//
// Where the process has an OpenMP runtime (as one that uses torch), the process's pools borrow its
// threads instead of having some: two sets of threads that spin while they wait would take the
// cores from each other wherever kernels and library steps alternate. Each of several runs then
// asks for its part of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "proto/base/cpu_kernel_abi.h"

namespace kiln::runtime {

class ThreadPool {
 public:
  using Body = void (*)(void* closure, long task, int thread);
  // GOMP_parallel of libgomp's ABI, which LLVM's and Intel's runtimes offer too: calls fn(data) on
  // up to `threads` threads, the caller's among them, and returns when all calls have.
  using OpenMpParallel = void (*)(void (*fn)(void* data), void* data, unsigned threads,
                                  unsigned flags);

  // The place of one run in the pool.
  class Run {
   public:
    // Calls body(closure, task, thread) for each task in [0, tasks), and returns when all are done.
    // Numbers of threads are below the pool's threads(), and no two of a run's tasks have one
    // number at the same time. REQUIRES: called by one thread, and not from a body.
    void ParallelFor(long tasks, Body body, void* closure);

    void Release();

   private:
    friend class ThreadPool;
    bool Enter();
    void Leave() { gate_.fetch_sub(1, std::memory_order_release); }
    bool RunTask(int thread);
    void RunOnOpenMp(int threads);

    ThreadPool* pool_ = nullptr;
    std::atomic<bool> held_{false};
    // The job in flight. Written by the run's thread while no worker is inside.
    Body body_ = nullptr;
    void* closure_ = nullptr;
    long tasks_ = 0;
    std::atomic<int> next_thread_{0};  // with OpenMP: the numbers of the threads that take part
    alignas(64) std::atomic<long> left_{0};  // tasks that nobody has; below 0 where some looked
    // open << 31 | workers inside. A worker enters a job only while it is open.
    alignas(64) std::atomic<uint32_t> gate_{0};
  };

  // With `openmp` the pool starts no threads, and fewer where the system gives no more.
  // REQUIRES: threads >= 1.
  explicit ThreadPool(int threads, OpenMpParallel openmp = nullptr);
  ~ThreadPool();  // joins
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Null where kMaxRuns have a place; such a run does its work alone.
  Run* Acquire();
  static constexpr int kMaxRuns = 16;

  // The process's pool of that size; made on first use and never destroyed. In a child of fork the
  // pool has no threads left and callers do all the work.
  static ThreadPool& Shared(int threads);

  // Of the process now; null where it has no OpenMP runtime.
  static OpenMpParallel ProcessOpenMp();

 private:
  void WorkerMain(int thread);
  uint32_t WaitForJob(uint32_t seen);
  bool Help(int thread, int& next);
  bool IsShared() const { return active_.load(std::memory_order_relaxed) > 1; }

  const int threads_;
  const OpenMpParallel openmp_;
  std::atomic<bool> stopping_{false};
  Run runs_[kMaxRuns];
  std::atomic<int> active_{0};  // runs that have a place

  alignas(64) std::atomic<uint32_t> epoch_{0};  // of the last job that began; the futex
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> workers_;
};

// The `parallel_for` of KilnCpuContext: context->pool is a ThreadPool::Run, or null to run inline.
void ContextParallelFor(const KilnCpuContext* context, long tasks, ThreadPool::Body body,
                        void* closure);

}  // namespace kiln::runtime
