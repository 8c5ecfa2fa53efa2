#include "client/runtime/cpu/thread_pool.h"

#include <dlfcn.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kiln::runtime {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr int kPausesBetweenClockReads = 32;

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr,
          nullptr, 0);
}

std::atomic<bool> in_forked_child{false};

}  // namespace

ThreadPool::ThreadPool(int threads, OpenMpParallel openmp) : threads_(threads), openmp_(openmp) {
  if (openmp_ != nullptr) return;
  workers_.reserve(threads - 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerMain(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  epoch_.fetch_add(1);
  FutexWake(epoch_, INT_MAX);
  for (std::thread& worker : workers_) worker.join();
}

// Returns the first epoch after `seen`.
uint32_t ThreadPool::WaitForJob(uint32_t seen) {
  auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenClockReads; ++i) {
      uint32_t now = epoch_.load(std::memory_order_acquire);
      if (now != seen) return now;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  uint32_t now = seen;
  // Sequentially consistent with ParallelFor, which raises the epoch and then reads `sleepers_`:
  // either it sees this sleeper or the futex sees the new epoch.
  sleepers_.fetch_add(1);
  while ((now = epoch_.load()) == seen) FutexWait(epoch_, seen);
  sleepers_.fetch_sub(1);
  return now;
}

bool ThreadPool::Enter(uint32_t epoch) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if (gate >> 32 != epoch || (gate & kOpen) == 0) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  return true;
}

void ThreadPool::RunTasks(int thread) {
  for (;;) {
    long task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    body_(closure_, task, thread);
  }
}

void ThreadPool::WorkerMain(int thread) {
  uint32_t seen = 0;
  for (;;) {
    seen = WaitForJob(seen);
    if (stopping_.load()) return;
    if (!Enter(seen)) continue;
    RunTasks(thread);
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::RunOnOpenMp() {
  next_thread_.store(0, std::memory_order_relaxed);
  openmp_(
      [](void* data) {
        auto* pool = static_cast<ThreadPool*>(data);
        pool->RunTasks(pool->next_thread_.fetch_add(1, std::memory_order_relaxed));
      },
      this, static_cast<unsigned>(std::min<long>(threads_, tasks_)), 0);
}

void ThreadPool::ParallelFor(long tasks, Body body, void* closure) {
  if (tasks <= 1 || threads_ == 1 || in_forked_child.load(std::memory_order_relaxed)) {
    for (long task = 0; task < tasks; ++task) body(closure, task, 0);
    return;
  }
  body_ = body;
  closure_ = closure;
  tasks_ = tasks;
  next_task_.store(0, std::memory_order_relaxed);
  if (openmp_ != nullptr) {
    RunOnOpenMp();
    return;
  }
  uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  gate_.store(uint64_t{epoch} << 32 | kOpen, std::memory_order_release);
  epoch_.store(epoch);
  if (int sleepers = sleepers_.load(); sleepers > 0) {
    FutexWake(epoch_, static_cast<int>(std::min<long>(tasks - 1, sleepers)));
  }
  RunTasks(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & (kOpen - 1)) != 0; ++spins) {
    // A worker inside may have lost its processor to somebody: give ours up now and then.
    if (spins % 4096 == 4095) std::this_thread::yield();
    _mm_pause();
  }
}

ThreadPool& ThreadPool::Shared(int threads) {
  struct Pools {
    absl::Mutex mutex;
    std::map<int, std::unique_ptr<ThreadPool>> by_size ABSL_GUARDED_BY(mutex);
  };
  static auto* pools = [] {
    pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true); });
    return new Pools;
  }();
  absl::MutexLock lock(&pools->mutex);
  std::unique_ptr<ThreadPool>& pool = pools->by_size[threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads, ProcessOpenMp());
  return *pool;
}

ThreadPool::OpenMpParallel ThreadPool::ProcessOpenMp() {
  return reinterpret_cast<OpenMpParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

void ContextParallelFor(const KilnCpuContext* context, long tasks, ThreadPool::Body body,
                        void* closure) {
  if (context->pool != nullptr) {
    static_cast<ThreadPool*>(context->pool)->ParallelFor(tasks, body, closure);
    return;
  }
  for (long task = 0; task < tasks; ++task) body(closure, task, 0);
}

}  // namespace kiln::runtime
