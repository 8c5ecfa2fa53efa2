#include "server/jobs/fair_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kiln::server {
namespace {

constexpr size_t kMaxTenants = 1024;  // that are remembered only for the time that they owe
constexpr double kNewestShare = 1.0 / 8;
constexpr double kLeastCost = 1e-3;  // seconds: answers from the cache are work, too

}  // namespace

struct FairQueue::Tenant {
  std::string name;
  int64_t number = 0;  // tenants are numbered as they come
  double weight = 1;
  int queued = 0;
  int running = 0;
  std::array<std::list<int64_t>, kLanes> jobs;
  std::array<double, kLanes> start = {};  // virtual time at which the next job begins
  std::array<bool, kLanes> enlisted = {};
};

FairQueue::FairQueue(FairQueueOptions options) : options_(std::move(options)) {}
FairQueue::~FairQueue() = default;

int FairQueue::WeightOf(const std::string& name) const {
  auto it = options_.weights.find(name);
  return it == options_.weights.end() ? 1 : it->second;
}

FairQueue::Tenant& FairQueue::FindOrAdd(absl::string_view name) {
  std::string key(name);
  // Every so many, so that a flood of names costs little and leaves nothing behind.
  if (tenants_.size() % kMaxTenants == kMaxTenants - 1) {
    std::erase_if(tenants_, [](const auto& item) {
      return item.second->queued == 0 && item.second->running == 0;
    });
  }
  std::unique_ptr<Tenant>& place = tenants_[key];
  if (place == nullptr) {
    place = std::make_unique<Tenant>();
    place->number = ++tenants_seen_;
    place->weight = WeightOf(key);
    place->name = std::move(key);
  }
  return *place;
}

void FairQueue::ForgetIdle(Tenant* tenant) {
  if (tenant->queued > 0 || tenant->running > 0) return;
  bool owes = false;
  for (int lane = 0; lane < kLanes; ++lane) owes |= tenant->start[lane] > clock_[lane];
  if (!owes) tenants_.erase(tenants_.find(tenant->name));
}

bool FairQueue::HasRoom(const Tenant& tenant) const {
  return options_.tenant_max_running == 0 || tenant.running < options_.tenant_max_running;
}

void FairQueue::Delist(Tenant& tenant, int lane) {
  if (!tenant.enlisted[lane]) return;
  turns_[lane].erase({tenant.start[lane], tenant.number, &tenant});
  tenant.enlisted[lane] = false;
}

void FairQueue::Enlist(Tenant& tenant, int lane) {
  Delist(tenant, lane);
  if (tenant.jobs[lane].empty() || !HasRoom(tenant)) return;
  turns_[lane].insert({tenant.start[lane], tenant.number, &tenant});
  tenant.enlisted[lane] = true;
}

FairQueue::Tenant* FairQueue::FullestOf(int lane) const {
  Tenant* fullest = nullptr;
  auto share = [lane](const Tenant& t) {
    return static_cast<double>(t.jobs[lane].size()) / t.weight;
  };
  for (const auto& [name, tenant] : tenants_) {
    if (tenant->jobs[lane].empty()) continue;
    if (fullest == nullptr || share(*tenant) > share(*fullest)) fullest = tenant.get();
  }
  return fullest;
}

std::optional<int64_t> FairQueue::EvictFor(const Tenant& tenant, int lane) {
  Tenant* victim = nullptr;
  int from = lane;
  if (lane == kInteractiveLane) {
    victim = FullestOf(kWarmupLane);
    if (victim != nullptr) from = kWarmupLane;
  }
  if (victim == nullptr) {
    victim = FullestOf(lane);
    if (victim == nullptr || victim == &tenant) return std::nullopt;
    double theirs = static_cast<double>(victim->jobs[lane].size()) / victim->weight;
    double ours = static_cast<double>(tenant.jobs[lane].size() + 1) / tenant.weight;
    if (theirs <= ours) return std::nullopt;
  }
  int64_t job = victim->jobs[from].back();
  Remove(job);
  return job;
}

FairQueue::Pushed FairQueue::Push(int64_t job, absl::string_view name, Priority priority) {
  int lane = LaneOf(priority);
  Tenant& tenant = FindOrAdd(name);
  Pushed pushed;
  if (options_.tenant_max_queued > 0 && tenant.queued >= options_.tenant_max_queued) {
    pushed.status = absl::ResourceExhaustedError(
        absl::StrCat("the tenant '", name, "' has ", tenant.queued,
                     " compiles waiting, as many as it may (--tenant-max-queued)"));
    return pushed;
  }
  ++tenant.queued;  // keeps it from being forgotten, should it be its own victim
  if (size() >= options_.max_queued) {
    pushed.evicted = EvictFor(tenant, lane);
    if (!pushed.evicted) {
      --tenant.queued;
      pushed.status = absl::ResourceExhaustedError(
          absl::StrCat("the queue is full: ", size(), " compiles wait"));
      ForgetIdle(&tenant);
      return pushed;
    }
  }
  std::list<int64_t>& jobs = tenant.jobs[lane];
  if (jobs.empty()) tenant.start[lane] = std::max(tenant.start[lane], clock_[lane]);
  jobs.push_back(job);
  queued_[job] = {&tenant, lane, std::prev(jobs.end())};
  if (!tenant.enlisted[lane]) Enlist(tenant, lane);
  return pushed;
}

bool FairQueue::CanPop() const {
  return !turns_[kInteractiveLane].empty() || !turns_[kWarmupLane].empty();
}

std::optional<int64_t> FairQueue::Pop() {
  if (!CanPop()) return std::nullopt;
  int lane = kInteractiveLane;
  if (turns_[kInteractiveLane].empty() ||
      (!turns_[kWarmupLane].empty() && interactive_in_a_row_ + 1 >= kWarmupShare)) {
    lane = kWarmupLane;
  }
  interactive_in_a_row_ = lane == kInteractiveLane ? interactive_in_a_row_ + 1 : 0;
  Tenant& tenant = *std::get<Tenant*>(*turns_[lane].begin());
  int64_t job = tenant.jobs[lane].front();
  tenant.jobs[lane].pop_front();
  queued_.erase(job);
  --tenant.queued;
  clock_[lane] = std::max(clock_[lane], tenant.start[lane]);
  Start(job, tenant, lane);
  return job;
}

void FairQueue::Start(int64_t job, Tenant& tenant, int lane) {
  Delist(tenant, lane);
  ++tenant.running;
  tenant.start[lane] += typical_s_ / tenant.weight;  // put right when it is done
  running_[job] = {&tenant, lane, typical_s_};
  for (int each = 0; each < kLanes; ++each) Enlist(tenant, each);
}

void FairQueue::Resume(int64_t job, absl::string_view tenant, Priority priority) {
  Start(job, FindOrAdd(tenant), LaneOf(priority));
}

bool FairQueue::Remove(int64_t job) {
  auto it = queued_.find(job);
  if (it == queued_.end()) return false;
  auto [tenant, lane, place] = it->second;
  queued_.erase(it);
  tenant->jobs[lane].erase(place);
  --tenant->queued;
  if (tenant->jobs[lane].empty()) Delist(*tenant, lane);
  ForgetIdle(tenant);
  return true;
}

void FairQueue::Done(int64_t job, absl::Duration took) {
  auto it = running_.find(job);
  if (it == running_.end()) return;
  auto [tenant, lane, charged_s] = it->second;
  running_.erase(it);
  double cost_s = std::max(absl::ToDoubleSeconds(took), kLeastCost);
  typical_s_ += (cost_s - typical_s_) * kNewestShare;
  Delist(*tenant, lane);
  tenant->start[lane] += (cost_s - charged_s) / tenant->weight;
  --tenant->running;
  for (int each = 0; each < kLanes; ++each) Enlist(*tenant, each);
  ForgetIdle(tenant);
}

std::vector<TenantCounts> FairQueue::Tenants() const {
  std::vector<TenantCounts> counts;
  for (const auto& [name, tenant] : tenants_) {
    if (tenant->queued > 0 || tenant->running > 0) {
      counts.push_back({name, tenant->queued, tenant->running});
    }
  }
  return counts;
}

}  // namespace kiln::server
