// Graphs that killed workers lately, and are refused for a while.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/base/digest.h"

namespace kiln::server {

// Thread-safe; bounded.
class Refusals {
 public:
  // A key with two deaths within `period` is refused until `period` after the last.
  explicit Refusals(absl::Duration period) : period_(period) {}

  // FAILED_PRECONDITION with REASON_WORKER_CRASHED and the time left, where the key is refused.
  absl::Status Check(const Digest& key);
  void RecordDeaths(const Digest& key, int deaths);
  // Counts `deaths` and refuses the key from now on: a second try ended, or would end, the same
  // way.
  void Refuse(const Digest& key, int deaths);
  void Forget(const Digest& key);
  // Forgets every key; returns how many were refused.
  int64_t Clear();

 private:
  struct Record {
    int deaths = 0;
    bool refused = false;
    absl::Time until;
  };
  void Add(const Digest& key, int deaths, bool refuse);
  const absl::Duration period_;
  absl::Mutex mu_;
  absl::flat_hash_map<Digest, Record> records_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::server
