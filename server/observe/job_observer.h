// Who is told how jobs go on.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/digest.h"
#include "server/security/caller.h"

namespace kiln {
namespace v1 {
class CompileRequest;
}

namespace server {

// Thread-safe; its calls take no time to speak of. Jobs are named by their number.
class JobObserver {
 public:
  virtual ~JobObserver() = default;

  virtual void JobQueued(int64_t job, const Digest& key,
                         const std::shared_ptr<const v1::CompileRequest>& request,
                         const Caller& caller) = 0;
  virtual void JobJoined(int64_t job) = 0;
  // There was no room for a job of this tenant.
  virtual void JobRefused(absl::string_view tenant) = 0;
  virtual void JobStarted(int64_t job) = 0;
  virtual void StageStarted(int64_t job, absl::string_view stage) = 0;
  virtual void StageDone(int64_t job, absl::string_view stage, absl::Time start,
                         absl::Duration duration) = 0;
  virtual void KernelsFound(int64_t job, int total, int cached) = 0;
  virtual void KernelDone(int64_t job, absl::string_view symbol, absl::string_view operators,
                          absl::Time start, absl::Duration duration) = 0;
  // `source`: "compiled", or the tier that had it after all.
  virtual void JobEnded(int64_t job, const absl::Status& status, absl::string_view source) = 0;
};

// One that does nothing.
JobObserver& NoJobObserver();

}  // namespace server
}  // namespace kiln
