#include "cache/remote/write_queue.h"

#include <algorithm>
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
    case WriteResult::kDropped:
      return "dropped";
    case WriteResult::kTooLarge:
      return "too_large";
    case WriteResult::kFailed:
      return "error";
  }
  return "error";
}

WriteQueue::WriteQueue(const WriteQueueOptions& options, Write write, OnResult on_result)
    : options_(options),
      write_(std::move(write)),
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
  {
    absl::MutexLock lock(&mu_);
    const bool full = static_cast<int>(items_.size()) >= options_.max_entries ||
                      size_bytes_ + size_bytes > options_.max_bytes;
    if (!full && !stopping_) {
      items_.push_back({key, std::move(entry)});
      size_bytes_ += size_bytes;
      return absl::OkStatus();
    }
  }
  on_result_(WriteResult::kDropped);
  return absl::ResourceExhaustedError("too many writes wait for the shared tier");
}

void WriteQueue::Forget(const Key& key) {
  absl::MutexLock lock(&mu_);
  std::erase_if(items_, [&](const Item& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (item.key != key) return false;
    size_bytes_ -= SizeOf(item.entry);
    return true;
  });
}

int64_t WriteQueue::entries() {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(items_.size());
}

int64_t WriteQueue::size_bytes() {
  absl::MutexLock lock(&mu_);
  return size_bytes_;
}

void WriteQueue::RunThread() {
  while (true) {
    Item item;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WriteQueue::HasWork));
      if (stopping_) break;
      item = std::move(items_.front());
      items_.pop_front();
    }
    WriteOne(std::move(item));
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
  {
    absl::MutexLock lock(&mu_);
    if (IsAway(status) && item.attempts < options_.max_attempts) {
      items_.push_back(std::move(item));
      return;
    }
    size_bytes_ -= SizeOf(item.entry);
  }
  on_result_(status.ok() ? WriteResult::kWritten : WriteResult::kFailed);
}

void WriteQueue::Flush() {
  std::deque<Item> left;
  {
    absl::MutexLock lock(&mu_);
    left.swap(items_);
    size_bytes_ = 0;
  }
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
}

}  // namespace kiln::cache
