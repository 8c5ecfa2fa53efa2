#include "server/web/activity_report.h"

#include "absl/strings/str_cat.h"
#include "kiln/v1/activity.pb.h"

namespace kiln::server {
namespace {

constexpr int kDefaultRecent = 50;
constexpr int kDefaultSlowest = 20;

}  // namespace

absl::Status ReportActivity(const ActivitySources& sources, const v1::GetActivityRequest& request,
                            v1::Activity& out) {
  if (request.recent() < 0 || request.slowest() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot list ", request.recent(), " recent and ",
                                                   request.slowest(), " slowest compiles"));
  }
  sources.log.Snapshot(request.recent() == 0 ? kDefaultRecent : request.recent(),
                       request.slowest() == 0 ? kDefaultSlowest : request.slowest(), out);
  BrokerCounts jobs = sources.broker.Counts();
  out.set_jobs_queued(jobs.queued);
  out.set_jobs_running(jobs.running);
  out.set_waiters(jobs.waiters);
  WorkerCounts workers = sources.workers.Counts();
  out.set_workers_starting(workers.starting);
  out.set_workers_idle(workers.idle);
  out.set_workers_busy(workers.busy);
  for (const cache::Usage& usage : sources.store.Usages()) {
    v1::CacheUsage& to = *out.add_caches();
    to.set_kind(std::string(cache::EntryKindName(usage.kind)));
    to.set_tier(std::string(usage.tier));
    to.set_entries(usage.entries);
    to.set_size_bytes(usage.size_bytes);
  }
  out.set_version(sources.version);
  out.set_compiler_build(sources.compiler_build);
  out.set_draining(sources.draining());
  return absl::OkStatus();
}

}  // namespace kiln::server
