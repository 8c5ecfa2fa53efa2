// Tells the server what the first run of a program took on a device that tells times, for its page.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>

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

  // After a run that succeeded. Reports the first that had the sizes which the program was planned
  // for.
  void Ran(const runtime::Executor& executor);

 private:
  const std::shared_ptr<Endpoint> endpoint_;
  const Digest key_;
  const pid_t process_;
  std::atomic<bool> done_ = false;
};

}  // namespace kiln
