// The threads that kernels run on.
//
// A pool of N runs work on N threads: N - 1 of its own and the caller, who always takes part. Tasks
// are handed out one by one from a counter. A thread of the pool that is late (asleep, or not
// scheduled) is not waited for: the caller closes the job when no task is left and waits only for
// threads that took one. Idle threads spin for about 30 us and then sleep on a futex, so that a run
// of many short kernels wakes them once.
//
// Where the process has an OpenMP runtime (as one that uses torch), the process's pools borrow its
// threads instead of having some: two sets of threads that spin while they wait would take the
// cores from each other wherever kernels and library steps alternate.
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

  // With `openmp` the pool starts no threads. REQUIRES: threads >= 1.
  explicit ThreadPool(int threads, OpenMpParallel openmp = nullptr);
  ~ThreadPool();  // joins
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // A pool belongs to one run at a time.
  bool TryAcquire() { return !held_.exchange(true, std::memory_order_acquire); }
  void Release() { held_.store(false, std::memory_order_release); }

  // Calls body(closure, task, thread) for each task in [0, tasks), and returns when all are done.
  // REQUIRES: the caller acquired the pool; not called from a body.
  void ParallelFor(long tasks, Body body, void* closure);

  // The process's pool of that size; made on first use and never destroyed. In a child of fork the
  // pool has no threads left and callers do all the work.
  static ThreadPool& Shared(int threads);

  // Of the process now; null where it has no OpenMP runtime.
  static OpenMpParallel ProcessOpenMp();

 private:
  void WorkerMain(int thread);
  uint32_t WaitForJob(uint32_t seen);
  bool Enter(uint32_t epoch);
  void RunTasks(int thread);
  void RunOnOpenMp();

  const int threads_;
  const OpenMpParallel openmp_;
  std::atomic<bool> held_{false};
  std::atomic<bool> stopping_{false};

  // The job in flight. Written by the caller while no worker is inside.
  Body body_ = nullptr;
  void* closure_ = nullptr;
  long tasks_ = 0;
  alignas(64) std::atomic<long> next_task_{0};
  std::atomic<int> next_thread_{0};  // with OpenMP: the numbers of the threads that take part

  // epoch << 32 | open << 31 | workers inside. A worker enters only its own epoch while it is open.
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // the futex
  std::atomic<int> sleepers_{0};
  std::vector<std::thread> workers_;
};

// The `parallel_for` of KilnCpuContext: context->pool is a ThreadPool, or null to run inline.
void ContextParallelFor(const KilnCpuContext* context, long tasks, ThreadPool::Body body,
                        void* closure);

}  // namespace kiln::runtime
