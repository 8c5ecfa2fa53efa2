// The server's metrics, in Prometheus' terms. Names and labels are an interface: people alert on
// them. No label carries a digest or anything else without bound.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/metered_store.h"
#include "cache/store.h"
#include "server/worker_process.h"

namespace kiln::server {

// What is read off its owner whenever metrics are asked for.
struct GaugeValues {
  int jobs_queued = 0;
  int jobs_running = 0;
  int waiters = 0;
  int workers_starting = 0;
  int workers_idle = 0;
  int workers_busy = 0;
  std::vector<cache::Usage> caches;
};

// Thread-safe.
class Metrics {
 public:
  Metrics(absl::string_view version, absl::string_view compiler_build);
  ~Metrics();

  void CompileDone(absl::string_view target, const absl::Status& status, absl::Duration duration);
  void StageDone(absl::string_view stage, absl::string_view target, absl::Duration duration);
  void RpcDone(absl::string_view method, absl::StatusCode code, absl::Duration duration);
  void CacheRequest(cache::EntryKind kind, absl::string_view tier, cache::GetResult result);
  void JobCoalesced();
  void KernelCompiled(absl::string_view target);
  void GraphRefused();
  void WorkerExited(ExitReason reason);
  void LibraryStep(absl::string_view op);

  // The text exposition format.
  std::string Render(const GaugeValues& gauges);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kiln::server
