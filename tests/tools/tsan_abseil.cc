// Tells ThreadSanitizer of abseil's locks, for a program that is started with this in LD_PRELOAD.
//
// Debian's abseil is built without the sanitizer: what a Mutex, CondVar or Notification orders
// looks like a race. Each function here does what abseil's own does, and says so.
#include <dlfcn.h>

#include <cstdint>

extern "C" {
void __tsan_acquire(void* address) __attribute__((weak));
void __tsan_release(void* address) __attribute__((weak));
}

// As absl::Duration and absl::Time are passed.
struct Duration {
  int64_t seconds;
  uint32_t ticks;
};

namespace {

void Acquire(void* lock) {
  if (__tsan_acquire != nullptr) __tsan_acquire(lock);
}
void Release(void* lock) {
  if (__tsan_release != nullptr) __tsan_release(lock);
}
template <typename Function>
Function* Own(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// `symbol`: in abseil's namespace, as the compiler mangles it.
#define ABSL_NAME(symbol) "_ZN4absl7debian3" symbol
#define ABSL_CONST_NAME(symbol) "_ZNK4absl7debian3" symbol

#define AFTER_WHICH_IT_IS_HELD(name, symbol)     \
  void name(void* lock) __asm__(symbol);         \
  void name(void* lock) {                        \
    static auto* own = Own<void(void*)>(symbol); \
    own(lock);                                   \
    Acquire(lock);                               \
  }
#define AFTER_WHICH_IT_IS_FREE(name, symbol)     \
  void name(void* lock) __asm__(symbol);         \
  void name(void* lock) {                        \
    static auto* own = Own<void(void*)>(symbol); \
    Release(lock);                               \
    own(lock);                                   \
  }
#define WHERE_TRUE_HELD(name, symbol)            \
  bool name(void* lock) __asm__(symbol);         \
  bool name(void* lock) {                        \
    static auto* own = Own<bool(void*)>(symbol); \
    const bool held = own(lock);                 \
    if (held) Acquire(lock);                     \
    return held;                                 \
  }
// `lock`: which of the two arguments is the mutex.
#define WAITS(name, symbol, lock)                       \
  void name(void* first, void* second) __asm__(symbol); \
  void name(void* first, void* second) {                \
    static auto* own = Own<void(void*, void*)>(symbol); \
    Release(lock);                                      \
    own(first, second);                                 \
    Acquire(lock);                                      \
  }
#define WAITS_FOR(name, symbol, lock)                                   \
  bool name(void* first, void* second, Duration limit) __asm__(symbol); \
  bool name(void* first, void* second, Duration limit) {                \
    static auto* own = Own<bool(void*, void*, Duration)>(symbol);       \
    Release(lock);                                                      \
    const bool result = own(first, second, limit);                      \
    Acquire(lock);                                                      \
    return result;                                                      \
  }
#define IS_NOTIFIED_IN(name, symbol)                             \
  bool name(void* notification, Duration limit) __asm__(symbol); \
  bool name(void* notification, Duration limit) {                \
    static auto* own = Own<bool(void*, Duration)>(symbol);       \
    const bool notified = own(notification, limit);              \
    if (notified) Acquire(notification);                         \
    return notified;                                             \
  }

AFTER_WHICH_IT_IS_HELD(Lock, ABSL_NAME("5Mutex4LockEv"))
AFTER_WHICH_IT_IS_HELD(ReaderLock, ABSL_NAME("5Mutex10ReaderLockEv"))
AFTER_WHICH_IT_IS_FREE(Unlock, ABSL_NAME("5Mutex6UnlockEv"))
AFTER_WHICH_IT_IS_FREE(ReaderUnlock, ABSL_NAME("5Mutex12ReaderUnlockEv"))
WHERE_TRUE_HELD(TryLock, ABSL_NAME("5Mutex7TryLockEv"))
WHERE_TRUE_HELD(ReaderTryLock, ABSL_NAME("5Mutex13ReaderTryLockEv"))
WAITS(Await, ABSL_NAME("5Mutex5AwaitERKNS0_9ConditionE"), first)
WAITS(LockWhen, ABSL_NAME("5Mutex8LockWhenERKNS0_9ConditionE"), first)
WAITS(ReaderLockWhen, ABSL_NAME("5Mutex14ReaderLockWhenERKNS0_9ConditionE"), first)
WAITS_FOR(AwaitWithTimeout, ABSL_NAME("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"),
          first)
WAITS_FOR(AwaitWithDeadline, ABSL_NAME("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"),
          first)
WAITS_FOR(LockWhenWithTimeout,
          ABSL_NAME("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"), first)
WAITS_FOR(LockWhenWithDeadline,
          ABSL_NAME("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), first)

WAITS(CondVarWait, ABSL_NAME("7CondVar4WaitEPNS0_5MutexE"), second)
WAITS_FOR(CondVarWaitWithTimeout, ABSL_NAME("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"),
          second)
WAITS_FOR(CondVarWaitWithDeadline, ABSL_NAME("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"),
          second)

AFTER_WHICH_IT_IS_FREE(Notify, ABSL_NAME("12Notification6NotifyEv"))
AFTER_WHICH_IT_IS_HELD(WaitForNotification,
                       ABSL_CONST_NAME("12Notification19WaitForNotificationEv"))
IS_NOTIFIED_IN(WaitWithTimeout,
               ABSL_CONST_NAME("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"))
IS_NOTIFIED_IN(WaitWithDeadline,
               ABSL_CONST_NAME("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE"))
