#include "tests/soak/ledger.h"

#include <cstdio>

namespace kiln::soak {

void Ledger::Count(absl::string_view what, int64_t by) {
  absl::MutexLock lock(&mu_);
  counts_[std::string(what)] += by;
}

int64_t Ledger::count(absl::string_view what) const {
  absl::MutexLock lock(&mu_);
  auto it = counts_.find(what);
  return it == counts_.end() ? 0 : it->second;
}

void Ledger::Hit(absl::string_view source, absl::Duration took) {
  absl::MutexLock lock(&mu_);
  hits_[std::string(source)].Add(took);
}

void Ledger::Probe(absl::Duration took) {
  absl::MutexLock lock(&mu_);
  probes_.Add(took);
}

void Ledger::Breach(const std::string& sentence) {
  absl::MutexLock lock(&mu_);
  breaches_.push_back(sentence);
  std::printf("BREACH: %s\n", sentence.c_str());
  std::fflush(stdout);
}

std::map<std::string, int64_t> Ledger::counts() const {
  absl::MutexLock lock(&mu_);
  return {counts_.begin(), counts_.end()};
}

std::map<std::string, load::Histogram> Ledger::hits() const {
  absl::MutexLock lock(&mu_);
  return {hits_.begin(), hits_.end()};
}

load::Histogram Ledger::probes() const {
  absl::MutexLock lock(&mu_);
  return probes_;
}

std::vector<std::string> Ledger::breaches() const {
  absl::MutexLock lock(&mu_);
  return breaches_;
}

}  // namespace kiln::soak
