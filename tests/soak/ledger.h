// What happened so far: counters, times of hits, and what must not be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/load/histogram.h"

namespace kiln::soak {

// Thread-safe.
class Ledger {
 public:
  void Count(absl::string_view what, int64_t by = 1);
  int64_t count(absl::string_view what) const;
  // An artifact that was there: where from, and what it took the client.
  void Hit(absl::string_view source, absl::Duration took);
  // An answer of /healthz.
  void Probe(absl::Duration took);
  // What must not be; printed at once.
  void Breach(const std::string& sentence);

  std::map<std::string, int64_t> counts() const;
  std::map<std::string, load::Histogram> hits() const;
  load::Histogram probes() const;
  std::vector<std::string> breaches() const;

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, int64_t, std::less<>> counts_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, load::Histogram, std::less<>> hits_ ABSL_GUARDED_BY(mu_);
  load::Histogram probes_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> breaches_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kiln::soak
