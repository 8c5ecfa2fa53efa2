#include "client/run_report.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
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
  if (done_.load(std::memory_order_relaxed)) return;
  const runtime::DeviceRun run = executor.LastRun();
  if (run.launches.empty() || run.symbols != executor.typical_plan().symbols) return;
  if (done_.exchange(true) || endpoint_->silent.load() || getpid() != process_) return;
  v1::ReportRunRequest request;
  request.set_key(std::string(key_.view()));
  *request.mutable_times() = TimesOf(run);
  Remote& remote = endpoint_->remote;
  const absl::Status reported = remote.Connected()
                                    ? remote.ReportRun(request, kTimeout)
                                    : absl::UnavailableError("there is no connection to it now");
  if (reported.ok()) return;
  if (absl::IsDeadlineExceeded(reported)) endpoint_->silent = true;
  Log(LogLevel::kInfo, "the server was not told a run's times",
      {{"key", key_.ShortHex()}, {"why", std::string(reported.message())}});
}

}  // namespace kiln
