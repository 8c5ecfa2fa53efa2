// Writes to the shared tier in the background, so that nobody waits for them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/store.h"

namespace kiln::cache {

enum class WriteResult { kWritten, kDropped, kTooLarge, kFailed };

// "ok", "dropped" (the queue was full), "too_large", "error": metric labels.
absl::string_view WriteResultName(WriteResult result);

struct WriteQueueOptions {
  int max_entries = 1024;
  int64_t max_bytes = int64_t{64} << 20;
  int max_attempts = 8;  // for an entry, where the tier is away
  // Between attempts while every one fails: longer each time, up to the most.
  absl::Duration min_pause = absl::Milliseconds(100);
  absl::Duration max_pause = absl::Seconds(2);
  // How long the destructor goes on writing what is left.
  absl::Duration flush_limit = absl::Seconds(2);
};

// Thread-safe.
class WriteQueue {
 public:
  // Writes one entry. UNAVAILABLE and DEADLINE_EXCEEDED are tried again later, behind the others;
  // any other error is final.
  using Write = std::function<absl::Status(const Key&, const Entry&)>;
  // Called once for each entry that was offered, on any thread; quick.
  using OnResult = std::function<void(WriteResult)>;

  WriteQueue(const WriteQueueOptions& options, Write write, OnResult on_result);
  // Writes what is left, each once, within the limit; the rest counts as dropped.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // RESOURCE_EXHAUSTED where the queue is full: the entry is dropped.
  absl::Status Add(const Key& key, EntryPtr entry);
  // The entry is not written, unless that has begun.
  void Forget(const Key& key);
  // Runs `action` on the queue's thread once every entry that was added before is written, dropped
  // or given up.
  void After(std::function<void()> action);

  int64_t entries();
  int64_t size_bytes();

 private:
  struct Item {
    Key key;
    EntryPtr entry;
    int64_t number = 0;  // in the order of Add and After
    int attempts = 0;
  };
  struct Action {
    std::function<void()> run;
    int64_t number = 0;
  };

  void RunThread();
  void WriteOne(Item item);
  // Those that nothing before them holds up; they leave the queue.
  std::deque<Action> TakeDueActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !items_.empty() || !actions_.empty();
  }

  const WriteQueueOptions options_;
  const Write write_;
  const OnResult on_result_;
  absl::Mutex mu_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  std::deque<Action> actions_ ABSL_GUARDED_BY(mu_);
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t size_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of what waits or is being written
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int failures_in_a_row_ = 0;  // the thread's own
  std::thread thread_;
};

}  // namespace kiln::cache
