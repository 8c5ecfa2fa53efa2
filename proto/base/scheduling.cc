#include "proto/base/scheduling.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "absl/synchronization/mutex.h"

namespace kiln {
namespace {

constexpr int kWorkerNiceness = 10;
// A thread that wakes preempts one whose slice is longer than its own (EEVDF); the kernel's own are
// a few milliseconds, and it takes 0.1 to 100.
constexpr uint64_t kHitSliceNs = 100'000;
constexpr uint64_t kWorkerSliceNs = 20'000'000;

void SetScheduling(int policy, int niceness, uint64_t slice_ns) {
  // The kernel's struct sched_attr, first version, whose header cannot be had beside <sched.h>.
  struct {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes = {};
  attributes.size = sizeof(attributes);
  attributes.policy = static_cast<uint32_t>(policy);
  attributes.nice = niceness;
  attributes.runtime_ns = slice_ns;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

void GoFirst() {
  SetScheduling(SCHED_OTHER, getpriority(PRIO_PROCESS, 0), kHitSliceNs);
}

void StandBack() {
  SetScheduling(SCHED_BATCH, kWorkerNiceness, kWorkerSliceNs);
}

void StandBackBy(int niceness) {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);  // of the thread, on Linux
}

void SkipDeadlockChecks() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace kiln
