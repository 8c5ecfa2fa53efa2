// What clients tell of runs of artifacts on devices that tell times: shown on the page beside what
// the compiler predicted.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/observe/activity.h"

namespace kiln {
namespace v1 {
class DeviceTimes;
class ReportRunRequest;
}  // namespace v1

namespace server {

// Thread-safe. The last report of each of the last 64 compiles that have one, in memory.
class RunReports {
 public:
  // `activity` must outlive it.
  explicit RunReports(ActivityLog* activity);
  ~RunReports();

  // INVALID_ARGUMENT for what cannot be a run's times; NOT_FOUND where the server does not remember
  // a compile of the key.
  absl::Status Add(const v1::ReportRunRequest& request);
  // Of the compile with that key, in hex; null where there is none.
  std::shared_ptr<const v1::DeviceTimes> Find(absl::string_view key_hex) const;

 private:
  struct Report {
    std::string key;
    std::shared_ptr<const v1::DeviceTimes> times;
  };

  ActivityLog& activity_;
  mutable absl::Mutex mu_;
  std::list<Report> reports_ ABSL_GUARDED_BY(mu_);  // newest first
};

}  // namespace server
}  // namespace kiln
