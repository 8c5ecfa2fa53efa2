// Writes to the shared tier in the background, so that nobody waits for them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/store.h"

namespace kiln::cache {

enum class WriteResult { kWritten, kDeferred, kDropped, kTooLarge, kFailed };

// "ok", "deferred" (until there is room), "dropped" (no room for its key either), "too_large",
// "error": metric labels.
absl::string_view WriteResultName(WriteResult result);

struct WriteQueueOptions {
  int max_entries = 1024;
  int64_t max_bytes = int64_t{64} << 20;
  int max_attempts = 8;           // for an entry, where the tier is away; then it is deferred
  size_t max_deferred = 1 << 16;  // keys, of about 100 bytes
  // Between attempts while every one fails: longer each time, up to the most.
  absl::Duration min_pause = absl::Milliseconds(100);
  absl::Duration max_pause = absl::Seconds(2);
  // How long the destructor goes on writing what is left.
  absl::Duration flush_limit = absl::Seconds(2);
};

// What does not fit, or what the tier did not take in many attempts, is deferred: its key is kept,
// and once nothing else waits its bytes are read back and written. Thread-safe.
class WriteQueue {
 public:
  // Writes one entry. UNAVAILABLE and DEADLINE_EXCEEDED are tried again later, behind the others;
  // any other error is final.
  using Write = std::function<absl::Status(const Key&, const Entry&)>;
  // An entry that was deferred; an error where it is no longer there. May read a disk.
  using ReadBack = std::function<absl::StatusOr<EntryPtr>(const Key&)>;
  // Called once for each entry that was offered, and once more for one that was deferred before; on
  // any thread; quick.
  using OnResult = std::function<void(WriteResult)>;

  // Without `read_back` nothing is deferred: it is dropped.
  WriteQueue(const WriteQueueOptions& options, Write write, ReadBack read_back, OnResult on_result);
  // Writes what is left, each once, within the limit; the rest counts as dropped.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // RESOURCE_EXHAUSTED where the entry is dropped. One that is larger than the whole queue may wait
  // alone.
  absl::Status Add(const Key& key, EntryPtr entry);
  // The entry is not written, unless that has begun.
  void Forget(const Key& key);
  // Runs `action` on the queue's thread once every entry that was added before is written, deferred
  // or given up.
  void After(std::function<void()> action);

  int64_t entries();
  int64_t deferred();
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
  void WriteDeferred(const Key& key);
  // False where there is no room for the key.
  bool Defer(const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those that nothing before them holds up; they leave the queue.
  std::deque<Action> TakeDueActions() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !items_.empty() || !actions_.empty() || !deferred_.empty();
  }

  const WriteQueueOptions options_;
  const Write write_;
  const ReadBack read_back_;
  const OnResult on_result_;
  absl::Mutex mu_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
  std::deque<Action> actions_ ABSL_GUARDED_BY(mu_);
  std::deque<Key> deferred_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<Key> deferred_keys_ ABSL_GUARDED_BY(mu_);  // the same
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t size_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of what waits or is being written
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int failures_in_a_row_ = 0;  // the thread's own
  std::thread thread_;
};

}  // namespace kiln::cache
