#include "cache/remote/write_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/remote/deadline.h"

namespace kiln::cache {
namespace {

int64_t SizeOf(const EntryPtr& entry) {
  return static_cast<int64_t>(entry->bytes.size());
}

bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::string_view WriteResultName(WriteResult result) {
  switch (result) {
    case WriteResult::kWritten:
      return "ok";
    case WriteResult::kDeferred:
      return "deferred";
    case WriteResult::kDropped:
      return "dropped";
    case WriteResult::kTooLarge:
      return "too_large";
    case WriteResult::kFailed:
      return "error";
  }
  return "error";
}

WriteQueue::WriteQueue(const WriteQueueOptions& options, Write write, ReadBack read_back,
                       OnResult on_result)
    : options_(options),
      write_(std::move(write)),
      read_back_(std::move(read_back)),
      on_result_(std::move(on_result)),
      thread_([this] { RunThread(); }) {}

WriteQueue::~WriteQueue() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status WriteQueue::Add(const Key& key, EntryPtr entry) {
  const int64_t size_bytes = SizeOf(entry);
  bool deferred = false;
  {
    absl::MutexLock lock(&mu_);
    const bool full = static_cast<int>(items_.size()) >= options_.max_entries ||
                      (size_bytes_ > 0 && size_bytes_ + size_bytes > options_.max_bytes);
    if (!full && !stopping_) {
      items_.push_back({key, std::move(entry), next_number_++});
      size_bytes_ += size_bytes;
      return absl::OkStatus();
    }
    deferred = Defer(key);
  }
  on_result_(deferred ? WriteResult::kDeferred : WriteResult::kDropped);
  if (deferred) return absl::OkStatus();
  return absl::ResourceExhaustedError("too many writes wait for the shared tier");
}

bool WriteQueue::Defer(const Key& key) {
  if (read_back_ == nullptr || stopping_) return false;
  if (deferred_keys_.contains(key)) return true;
  if (deferred_.size() >= options_.max_deferred) return false;
  deferred_keys_.insert(key);
  deferred_.push_back(key);
  return true;
}

void WriteQueue::Forget(const Key& key) {
  absl::MutexLock lock(&mu_);
  if (deferred_keys_.erase(key) > 0) std::erase(deferred_, key);
  std::erase_if(items_, [&](const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (item.key != key) return false;
    size_bytes_ -= SizeOf(item.entry);
    return true;
  });
}

void WriteQueue::After(std::function<void()> action) {
  absl::MutexLock lock(&mu_);
  actions_.push_back({std::move(action), next_number_++});
}

std::deque<WriteQueue::Action> WriteQueue::TakeDueActions() {
  int64_t first_entry = next_number_;
  for (const Item& item : items_) first_entry = std::min(first_entry, item.number);
  std::deque<Action> due;
  while (!actions_.empty() && actions_.front().number < first_entry) {
    due.push_back(std::move(actions_.front()));
    actions_.pop_front();
  }
  return due;
}

int64_t WriteQueue::entries() {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(items_.size());
}

int64_t WriteQueue::deferred() {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(deferred_.size());
}

int64_t WriteQueue::size_bytes() {
  absl::MutexLock lock(&mu_);
  return size_bytes_;
}

void WriteQueue::RunThread() {
  while (true) {
    Item item;
    std::deque<Action> due;
    std::optional<Key> deferred;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WriteQueue::HasWork));
      if (stopping_) break;
      due = TakeDueActions();
      if (due.empty() && !items_.empty()) {
        item = std::move(items_.front());
        items_.pop_front();
      } else if (due.empty()) {  // so something was deferred
        deferred = deferred_.front();
        deferred_.pop_front();
        deferred_keys_.erase(*deferred);
      }
    }
    for (const Action& action : due) action.run();
    if (!due.empty()) continue;
    if (deferred) {
      WriteDeferred(*deferred);
    } else {
      WriteOne(std::move(item));
    }
    if (failures_in_a_row_ == 0) continue;
    const absl::Duration pause =
        std::min(options_.min_pause * failures_in_a_row_, options_.max_pause);
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
  }
  Flush();
}

void WriteQueue::WriteOne(Item item) {
  const absl::Status status = write_(item.key, *item.entry);
  ++item.attempts;
  failures_in_a_row_ = IsAway(status) ? failures_in_a_row_ + 1 : 0;
  bool deferred = false;
  {
    absl::MutexLock lock(&mu_);
    if (IsAway(status) && item.attempts < options_.max_attempts) {
      items_.push_back(std::move(item));
      return;
    }
    size_bytes_ -= SizeOf(item.entry);
    if (IsAway(status)) deferred = Defer(item.key);
  }
  on_result_(status.ok() ? WriteResult::kWritten
             : deferred  ? WriteResult::kDeferred
                         : WriteResult::kFailed);
}

void WriteQueue::WriteDeferred(const Key& key) {
  absl::StatusOr<EntryPtr> entry = read_back_(key);
  if (!entry.ok()) return on_result_(WriteResult::kDropped);  // evicted or removed meanwhile
  const absl::Status status = write_(key, **entry);
  failures_in_a_row_ = IsAway(status) ? failures_in_a_row_ + 1 : 0;
  if (IsAway(status)) {
    absl::MutexLock lock(&mu_);
    if (Defer(key)) return;  // counted the first time
  }
  on_result_(status.ok() ? WriteResult::kWritten : WriteResult::kFailed);
}

void WriteQueue::Flush() {
  std::deque<Item> left;
  std::deque<Action> actions;
  size_t deferred = 0;
  {
    absl::MutexLock lock(&mu_);
    left.swap(items_);
    actions.swap(actions_);
    size_bytes_ = 0;
    deferred = deferred_.size();
    deferred_.clear();
    deferred_keys_.clear();
  }
  for (; deferred > 0; --deferred) on_result_(WriteResult::kDropped);
  const SteadyTime deadline = DeadlineIn(options_.flush_limit);
  bool away = false;
  for (const Item& item : left) {
    away = away || TimeLeft(deadline) <= absl::ZeroDuration();
    const absl::Status status =
        away ? absl::UnavailableError("no time left") : write_(item.key, *item.entry);
    away = away || IsAway(status);
    on_result_(status.ok() ? WriteResult::kWritten
               : away      ? WriteResult::kDropped
                           : WriteResult::kFailed);
  }
  // A tier that is away costs each of them its time limit at most, and all of them the breaker's.
  for (const Action& action : actions) action.run();
}

}  // namespace kiln::cache
