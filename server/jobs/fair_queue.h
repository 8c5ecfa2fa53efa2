// Which job runs next: tenants take turns by weight, and what somebody waits for goes before
// warm-up.
//
// Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) over each class of jobs: a tenant's
// virtual time advances by the time that its jobs took over its weight, and the tenant with the
// least goes first. A tenant that was idle starts at the clock, so that it neither saves up nor
// owes. One job in kWarmupShare goes to warm-up however many interactive ones wait.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/observe/tenant_counts.h"
#include "server/security/caller.h"

namespace kiln::server {

struct FairQueueOptions {
  int max_queued = 256;
  int tenant_max_queued = 0;           // 0: no limit of its own
  int tenant_max_running = 0;          // 0: no limit of its own
  std::map<std::string, int> weights;  // 1 for tenants that are not here
};

// Not thread-safe. Remembers tenants that have jobs, and a bounded number of others.
class FairQueue {
 public:
  static constexpr int kWarmupShare = 9;

  struct Pushed {
    absl::Status status;             // RESOURCE_EXHAUSTED, without a hint, where there is no room
    std::optional<int64_t> evicted;  // a queued job that had to make room; it is no longer here
  };

  explicit FairQueue(FairQueueOptions options);
  ~FairQueue();

  // A full queue takes a job all the same where another tenant has more than its share of it or,
  // for an interactive job, where warm-up waits: the newest such job is evicted.
  Pushed Push(int64_t job, absl::string_view tenant, Priority priority);
  // True where some tenant with a queued job may run one more.
  bool CanPop() const;
  // The next job; it counts as running until Done. Nothing where !CanPop().
  std::optional<int64_t> Pop();
  // Counts a job as running that was popped before and Done since, and goes on.
  void Resume(int64_t job, absl::string_view tenant, Priority priority);
  // Takes a queued job out; false where it is not queued.
  bool Remove(int64_t job);
  // A job that was popped has run for `took`.
  void Done(int64_t job, absl::Duration took);

  int size() const { return static_cast<int>(queued_.size()); }
  // Tenants, those without jobs that owe time included.
  size_t remembered() const { return tenants_.size(); }
  // How long jobs take, lately.
  absl::Duration typical_duration() const { return absl::Seconds(typical_s_); }
  // Every tenant that has jobs.
  std::vector<TenantCounts> Tenants() const;

 private:
  enum { kInteractiveLane, kWarmupLane, kLanes };
  struct Tenant;
  struct Queued {
    Tenant* tenant;
    int lane;
    std::list<int64_t>::iterator place;
  };
  struct Running {
    Tenant* tenant;
    int lane;
    double charged_s;
  };
  using Turn = std::tuple<double, int64_t, Tenant*>;  // time, then who came first

  static int LaneOf(Priority priority) {
    return priority == Priority::kWarmup ? kWarmupLane : kInteractiveLane;
  }
  void Start(int64_t job, Tenant& tenant, int lane);
  Tenant& FindOrAdd(absl::string_view name);
  int WeightOf(const std::string& name) const;
  void ForgetIdle(Tenant* tenant);
  // Sets `tenant` among those whose turn may come in `lane`, or takes it out.
  void Enlist(Tenant& tenant, int lane);
  void Delist(Tenant& tenant, int lane);
  bool HasRoom(const Tenant& tenant) const;
  std::optional<int64_t> EvictFor(const Tenant& tenant, int lane);
  Tenant* FullestOf(int lane) const;

  const FairQueueOptions options_;
  std::map<std::string, std::unique_ptr<Tenant>, std::less<>> tenants_;
  std::array<std::set<Turn>, kLanes> turns_;
  std::array<double, kLanes> clock_ = {};
  absl::flat_hash_map<int64_t, Queued> queued_;
  absl::flat_hash_map<int64_t, Running> running_;
  int64_t tenants_seen_ = 0;
  int interactive_in_a_row_ = 0;
  double typical_s_ = 1;
};

}  // namespace kiln::server
