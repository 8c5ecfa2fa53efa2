// Metric labels out of names that callers choose: so many names of their own, then "other".
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace kiln::server {

// Thread-safe. A name keeps its label for good, as counters need.
class BoundedLabels {
 public:
  // The first `max_labels` names get labels of their own.
  explicit BoundedLabels(size_t max_labels) : max_labels_(max_labels) {}

  std::string Label(absl::string_view name);
  // The name has a label of its own, beyond the first ones.
  void Reserve(absl::string_view name);
  // Every label that was given.
  std::vector<std::string> All() const;

 private:
  const size_t max_labels_;
  mutable absl::Mutex mu_;
  absl::flat_hash_set<std::string> reserved_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> known_ ABSL_GUARDED_BY(mu_);
  bool overflowed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kiln::server
