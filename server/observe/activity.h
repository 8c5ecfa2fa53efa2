// What the server does now and did lately: for the web page, `kiln top` and nobody's alerts (those
// use metrics.h). Everything in it is bounded, whatever callers send.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/digest.h"
#include "server/observe/job_observer.h"
#include "server/security/caller.h"

namespace kiln {
namespace v1 {
class Activity;
class CompileRecord;
class CompileRequest;
}  // namespace v1

namespace server {

class LatencyHistogram;

// The tenant of compiles that the web page asks for. No header can name it: it has parentheses.
inline constexpr char kPageTenant[] = "(page)";

struct ActivityOptions {
  int max_recent = 200;
  int max_slowest = 50;
  absl::Duration slowest_period = absl::Hours(24);
  // Graphs kept, so that the page can show their compile's inside.
  int64_t max_request_bytes = int64_t{32} << 20;
  int max_tenants = 64;      // the rest count as "other"
  int max_live_jobs = 4096;  // more are counted, not listed
  std::function<absl::Time()> clock = &absl::Now;
};

// Thread-safe. A hit costs an uncontended lock and a few additions. Calls
// about a job that is not known, or has ended, are ignored.
class ActivityLog final : public JobObserver {
 public:
  explicit ActivityLog(ActivityOptions options = {});
  ~ActivityLog() override;

  // A Fetch or Compile that a cache answered.
  void Hit(absl::string_view tenant, absl::Duration latency);
  // A client fetches before it compiles: the two misses of one key are one.
  void FetchMissed(const Digest& key);
  void CompileMissed(const Digest& key);

  void JobQueued(int64_t job, const Digest& key,
                 const std::shared_ptr<const v1::CompileRequest>& request,
                 const Caller& caller) override;
  void JobJoined(int64_t job) override;
  void JobRefused(absl::string_view tenant) override;
  void JobStarted(int64_t job) override;
  void StageStarted(int64_t job, absl::string_view stage) override;
  void StageDone(int64_t job, absl::string_view stage, absl::Time start,
                 absl::Duration duration) override;
  void KernelDone(int64_t job, absl::string_view symbol, absl::string_view operators,
                  absl::Time start, absl::Duration duration) override;
  void KernelsFound(int64_t job, int total, int cached) override;
  void JobEnded(int64_t job, const absl::Status& status, absl::string_view source) override;

  // Everything but what only the broker, the workers and the caches know. `recent` and `slowest`
  // are how many to list; newest and slowest first.
  void Snapshot(int recent, int slowest, v1::Activity& out);

  // The newest job of this key (hex), running ones included; false where none is remembered.
  bool FindRecord(absl::string_view key_hex, v1::CompileRecord& out);
  // Parsed anew; null where it is not kept any more.
  std::shared_ptr<const v1::CompileRequest> FindRequest(absl::string_view key_hex);

 private:
  struct HitShard;
  struct State;

  void MergeHits(int64_t last_slot, std::vector<LatencyHistogram>& slots,
                 absl::flat_hash_map<std::string, int64_t>& by_tenant);

  const ActivityOptions options_;
  std::unique_ptr<HitShard[]> hits_;
  std::unique_ptr<State> state_;
};

}  // namespace server
}  // namespace kiln
