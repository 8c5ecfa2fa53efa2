#include "server/observe/bounded_labels.h"

namespace kiln::server {
namespace {

constexpr char kOther[] = "other";

}  // namespace

std::string BoundedLabels::Label(absl::string_view name) {
  std::string label(name);
  absl::MutexLock lock(&mu_);
  if (reserved_.contains(label) || known_.contains(label)) return label;
  if (known_.size() >= max_labels_) {
    overflowed_ = true;
    return kOther;
  }
  known_.insert(label);
  return label;
}

void BoundedLabels::Reserve(absl::string_view name) {
  absl::MutexLock lock(&mu_);
  reserved_.emplace(name);
}

std::vector<std::string> BoundedLabels::All() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> labels(reserved_.begin(), reserved_.end());
  labels.insert(labels.end(), known_.begin(), known_.end());
  if (overflowed_) labels.emplace_back(kOther);
  return labels;
}

}  // namespace kiln::server
