#include "client/run_report.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/launches_text.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/log.h"

namespace kiln {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(500);

}  // namespace

RunReport::RunReport(std::shared_ptr<Endpoint> endpoint, const Digest& key)
    : endpoint_(std::move(endpoint)), key_(key), process_(getpid()) {}

void RunReport::Ran(const runtime::Executor& executor) {
  ReportTimes(executor);
  ReportChoices(executor);
}

bool RunReport::CanTell() const {
  return !endpoint_->silent.load() && getpid() == process_;
}

void RunReport::Told(const absl::Status& status, const char* what) const {
  if (status.ok()) return;
  if (absl::IsDeadlineExceeded(status)) endpoint_->silent = true;
  Log(LogLevel::kInfo, absl::StrCat("the server was not told ", what),
      {{"key", key_.ShortHex()}, {"why", std::string(status.message())}});
}

void RunReport::ReportTimes(const runtime::Executor& executor) {
  if (!executor.TellsRuns() || done_.load(std::memory_order_relaxed)) return;
  const runtime::DeviceRun run = executor.LastRun();
  if (run.launches.empty() || run.symbols != executor.typical_plan().symbols) return;
  if (done_.exchange(true) || !CanTell()) return;
  v1::ReportRunRequest request;
  request.set_key(std::string(key_.view()));
  *request.mutable_times() = TimesOf(run);
  Remote& remote = endpoint_->remote;
  Told(remote.Connected() ? remote.ReportRun(request, kTimeout)
                          : absl::UnavailableError("there is no connection to it now"),
       "a run's times");
}

void RunReport::ReportChoices(const runtime::Executor& executor) {
  if (!executor.choices().any()) return;
  const auto decided = executor.choices().TakeDecided();
  if (decided.empty() || !CanTell()) return;
  v1::ReportChoicesRequest request;
  for (const runtime::LaunchChoices::Decided& one : decided) {
    v1::ReportChoicesRequest::Choice& choice = *request.add_choices();
    choice.set_key(one.key);
    choice.set_chosen(one.chosen);
  }
  Remote& remote = endpoint_->remote;
  Told(remote.Connected() ? remote.ReportChoices(request, kTimeout)
                          : absl::UnavailableError("there is no connection to it now"),
       "what was chosen");
}

}  // namespace kiln
