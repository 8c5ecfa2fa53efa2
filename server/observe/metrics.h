// The server's metrics, in Prometheus' terms. Names and labels are an interface: people alert on
// them. No label carries a digest or anything else without bound.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/metered_store.h"
#include "cache/remote/remote_tier.h"
#include "cache/store.h"
#include "server/observe/door_counts.h"
#include "server/observe/process_stats.h"
#include "server/observe/tenant_counts.h"
#include "server/security/caller.h"
#include "server/workers/worker_process.h"

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
  std::vector<TenantCounts> tenants;
  ProcessStats process;
  DoorCounts door;
  int worker_isolation_gaps = 0;
  std::optional<cache::RemoteCounts> remote;  // nothing where no tier is shared
  // Until the server's certificate expires, negative from then on; nothing without TLS.
  std::optional<absl::Duration> certificate_left;
};

// Thread-safe.
class Metrics {
 public:
  Metrics(absl::string_view version, absl::string_view compiler_build);
  ~Metrics();

  // A target that the server has: its counters exist from the start.
  void AddTarget(absl::string_view target, absl::string_view compiler_build);

  void CompileDone(absl::string_view target, const absl::Status& status, absl::Duration duration);
  void StageDone(absl::string_view stage, absl::string_view target, absl::Duration duration);
  void RpcDone(absl::string_view method, absl::StatusCode code, absl::Duration duration);
  // A value that a tier did not take.
  void CachePutFailed(cache::EntryKind kind, absl::string_view tier);
  void CacheRequest(cache::EntryKind kind, absl::string_view tier, cache::GetResult result);
  void JobCoalesced();
  void KernelCompiled(absl::string_view target);
  void GraphRefused();
  void WorkerExited(ExitReason reason);
  void KernelAssembled(bool ok);
  void LibraryStep(absl::string_view op);
  void TenantCompiled(absl::string_view tenant, const absl::Status& status);
  // `reason`: "queue", "evicted", "calls", "interprets", "bytes".
  void TenantRefused(absl::string_view tenant, absl::string_view reason);
  // These tenants are never counted as "other".
  void NameTenants(const std::vector<std::string>& tenants);

  // A call that a cache tier answered, from its arrival to its last byte.
  void HitServed(absl::string_view tier, absl::string_view tenant, absl::Duration duration);
  void RpcSent(absl::string_view method, int64_t bytes);
  // `reason`: one of a fixed set of words, as in call.cc.
  void CallRejected(absl::string_view reason);
  // From a job's arrival to its start.
  void JobStarted(Priority priority, absl::Duration waited);
  // Kernels of a compile that a cache had.
  void KernelsReused(absl::string_view target, int64_t count);
  void SpansExported(int64_t count);
  // `reason`: "queue_full", "refused" by the collector, "unreachable".
  void SpansDropped(absl::string_view reason, int64_t count);

  // As cache::RemoteObserver has them.
  void RemoteDone(absl::string_view operation, bool ok, absl::Duration duration);
  void RemoteWritten(cache::WriteResult result);

  // The text exposition format.
  std::string Render(const GaugeValues& gauges);

 private:
  void ShowDoor(const DoorCounts& counts);
  void ShowProcess(const ProcessStats& stats);
  void ShowRemote(const cache::RemoteCounts& counts);

  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace kiln::server
