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
#include <system_error>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kiln::runtime {
namespace {

constexpr uint32_t kOpen = uint32_t{1} << 31;
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
  for (Run& run : runs_) run.pool_ = this;
  if (openmp_ != nullptr) return;
  workers_.reserve(threads - 1);
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { WorkerMain(thread); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: those that are there do the work.
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

ThreadPool::Run* ThreadPool::Acquire() {
  for (Run& run : runs_) {
    if (run.held_.load(std::memory_order_relaxed)) continue;
    if (run.held_.exchange(true, std::memory_order_acquire)) continue;
    active_.fetch_add(1, std::memory_order_relaxed);
    return &run;
  }
  return nullptr;
}

void ThreadPool::Run::Release() {
  pool_->active_.fetch_sub(1, std::memory_order_relaxed);
  held_.store(false, std::memory_order_release);
}

bool ThreadPool::Run::Enter() {
  uint32_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if ((gate & kOpen) == 0) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  return true;
}

bool ThreadPool::Run::RunTask(int thread) {
  const long left = left_.fetch_sub(1, std::memory_order_relaxed);
  if (left <= 0) return false;
  body_(closure_, tasks_ - left, thread);
  return true;
}

// Works for one run, from `next` on, that has tasks left: on all of them where it is the only one.
bool ThreadPool::Help(int thread, int& next) {
  for (int i = 0; i < kMaxRuns; ++i) {
    Run& run = runs_[(next + i) % kMaxRuns];
    if (run.left_.load(std::memory_order_relaxed) <= 0 || !run.Enter()) continue;
    while (run.RunTask(thread) && !IsShared()) {
    }
    run.Leave();
    next = (next + i + (IsShared() ? 1 : 0)) % kMaxRuns;
    return true;
  }
  return false;
}

void ThreadPool::WorkerMain(int thread) {
  uint32_t seen = 0;
  int next = 0;
  for (;;) {
    seen = WaitForJob(seen);
    if (stopping_.load()) return;
    while (Help(thread, next)) {
    }
  }
}

void ThreadPool::Run::RunOnOpenMp(int threads) {
  next_thread_.store(0, std::memory_order_relaxed);
  pool_->openmp_(
      [](void* data) {
        auto* run = static_cast<Run*>(data);
        const int thread = run->next_thread_.fetch_add(1, std::memory_order_relaxed);
        while (run->RunTask(thread)) {
        }
      },
      this, static_cast<unsigned>(threads), 0);
}

void ThreadPool::Run::ParallelFor(long tasks, Body body, void* closure) {
  ThreadPool& pool = *pool_;
  int threads = pool.threads_;
  if (pool.openmp_ != nullptr) {
    const int part = std::max(1, threads / pool.active_.load(std::memory_order_relaxed));
    threads = static_cast<int>(std::min<long>(part, tasks));
  }
  if (tasks <= 1 || threads == 1 || in_forked_child.load(std::memory_order_relaxed)) {
    for (long task = 0; task < tasks; ++task) body(closure, task, 0);
    return;
  }
  body_ = body;
  closure_ = closure;
  tasks_ = tasks;
  left_.store(tasks, std::memory_order_relaxed);
  if (pool.openmp_ != nullptr) {
    RunOnOpenMp(threads);
    return;
  }
  gate_.store(kOpen, std::memory_order_release);
  pool.epoch_.fetch_add(1);
  if (int sleepers = pool.sleepers_.load(); sleepers > 0) {
    FutexWake(pool.epoch_, static_cast<int>(std::min<long>(tasks - 1, sleepers)));
  }
  while (RunTask(0)) {
  }
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; gate_.load(std::memory_order_acquire) != 0; ++spins) {
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
    static_cast<ThreadPool::Run*>(context->pool)->ParallelFor(tasks, body, closure);
    return;
  }
  for (long task = 0; task < tasks; ++task) body(closure, task, 0);
}

}  // namespace kiln::runtime
