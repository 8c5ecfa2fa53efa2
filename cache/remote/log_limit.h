// Keeps a warning that every request could raise from filling the log.
#pragma once

#include <atomic>

#include "cache/remote/deadline.h"

namespace kiln::cache {

// Thread-safe. The metrics count every case; the log shows one each half a minute.
class LogLimit {
 public:
  bool Due() {
    const int64_t now_ms = absl::ToInt64Milliseconds(
        absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
    int64_t next_ms = next_ms_.load(std::memory_order_relaxed);
    return now_ms >= next_ms && next_ms_.compare_exchange_strong(next_ms, now_ms + 30000);
  }

 private:
  std::atomic<int64_t> next_ms_ = 0;
};

}  // namespace kiln::cache
