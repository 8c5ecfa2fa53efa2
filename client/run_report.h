// Tells the server what the first run of a program took on a device that tells times, for its page,
// and which of launches' alternatives were the fastest here, for later compiles.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "client/endpoints.h"
#include "client/runtime/executor.h"
#include "proto/base/digest.h"

namespace kiln {

// Of one program. Thread-safe. Nothing depends on it: a failure is a line of the log, a server that
// is away is not waited for, and one that is silent for half a second at most. In a child of fork
// the connection is of no use, and nothing is told.
class RunReport {
 public:
  // `endpoint`: the server that the program with this key is of.
  RunReport(std::shared_ptr<Endpoint> endpoint, const Digest& key);

  // After a run that succeeded. Reports the times of the first that had the sizes which the program
  // was planned for, and what it has decided.
  void Ran(const runtime::Executor& executor);

 private:
  void ReportTimes(const runtime::Executor& executor);
  void ReportChoices(const runtime::Executor& executor);
  // Whether the server can be told something now, without a wait.
  bool CanTell() const;
  void Told(const absl::Status& status, const char* what) const;

  const std::shared_ptr<Endpoint> endpoint_;
  const Digest key_;
  const pid_t process_;
  std::atomic<bool> done_ = false;
};

}  // namespace kiln
