#include "server/observe/job_observer.h"

namespace kiln::server {
namespace {

class Nobody final : public JobObserver {
  void JobQueued(int64_t, const Digest&, const std::shared_ptr<const v1::CompileRequest>&,
                 const Caller&) override {}
  void JobJoined(int64_t) override {}
  void JobRefused(absl::string_view) override {}
  void JobStarted(int64_t) override {}
  void StageStarted(int64_t, absl::string_view) override {}
  void StageDone(int64_t, absl::string_view, absl::Time, absl::Duration) override {}
  void KernelsFound(int64_t, int, int) override {}
  void KernelDone(int64_t, absl::string_view, absl::string_view, absl::Time,
                  absl::Duration) override {}
  void JobEnded(int64_t, const absl::Status&, absl::string_view) override {}
};

}  // namespace

JobObserver& NoJobObserver() {
  static Nobody nobody;
  return nobody;
}

}  // namespace kiln::server
