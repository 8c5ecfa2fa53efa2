#include "server/observe/activity.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kiln/v1/activity.pb.h"
#include "kiln/v1/compile_service.pb.h"
#include "proto/base/arena_message.h"
#include "proto/base/target_name.h"
#include "server/observe/latency_window.h"

namespace kiln::server {
namespace {

constexpr size_t kShards = 8;
constexpr size_t kMaxTextBytes = 300;
constexpr int kMaxSpans = 300;
constexpr size_t kMaxFetchMisses = 4096;
constexpr size_t kEntryBytes = 512;  // of a kept request, however small: keys, nodes, blocks

// Counts of hits, and of everything else, in one slot of the window.
struct HitSlot {
  LatencyHistogram latency;
  void Clear() { latency.Clear(); }
};
struct JobSlot {
  LatencyHistogram latency;
  int64_t misses = 0;
  int64_t failures = 0;
  int queued = 0;
  int running = 0;
  void Clear() { *this = JobSlot(); }
};

using HitCounts = absl::flat_hash_map<std::string, int64_t>;

int64_t& CountOf(HitCounts& counts, absl::string_view tenant, int max_tenants) {
  auto it = counts.find(tenant);
  if (it != counts.end()) return it->second;
  bool full = static_cast<int>(counts.size()) >= max_tenants;
  return counts[full ? std::string("other") : std::string(tenant)];
}

std::string Shorten(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return std::string(text);
  size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // UTF-8
  return absl::StrCat(text.substr(0, end), "...");
}

// Threads are spread over the shards as they come.
size_t ShardOfThread() {
  static std::atomic<size_t> next{0};
  thread_local const size_t shard = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return shard;
}

void FillLatency(const LatencyHistogram& histogram, v1::Latency& out) {
  out.set_count(histogram.count());
  out.set_p50_ms(absl::ToDoubleMilliseconds(histogram.Quantile(0.50)));
  out.set_p95_ms(absl::ToDoubleMilliseconds(histogram.Quantile(0.95)));
  out.set_p99_ms(absl::ToDoubleMilliseconds(histogram.Quantile(0.99)));
}

int64_t DurationUs(const v1::CompileRecord& record) {
  return record.finished_unix_us() - record.started_unix_us();
}

bool IsPages(const v1::CompileRecord& record) {
  return record.tenant() == kPageTenant;
}

}  // namespace

struct alignas(64) ActivityLog::HitShard {
  absl::Mutex mu;
  SlotRing<HitSlot> window ABSL_GUARDED_BY(mu);
  HitCounts by_tenant ABSL_GUARDED_BY(mu);
};

struct ActivityLog::State {
  // A job, with its spans apart: lists leave them out, and they are most of it.
  struct Job {
    v1::CompileRecord record;
    google::protobuf::RepeatedPtrField<v1::StageSpan> spans;
    std::shared_ptr<const v1::CompileRequest> request;  // until it starts

    // Null where there are too many.
    v1::StageSpan* AddSpan(absl::string_view stage, absl::Time start, absl::Duration duration) {
      if (spans.size() >= kMaxSpans) return nullptr;
      v1::StageSpan& span = *spans.Add();
      span.set_stage(std::string(stage));
      int64_t start_us = absl::ToUnixMicros(start) - record.started_unix_us();
      span.set_start_us(std::max<int64_t>(start_us, 0));
      span.set_duration_us(absl::ToInt64Microseconds(duration));
      return &span;
    }
  };
  struct Tenant {
    int64_t compiles = 0;
    int64_t refused = 0;
  };

  explicit State(absl::Time now) : started(now) {}

  Tenant& TenantOf(absl::string_view name, int max_tenants) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    auto it = tenants.find(name);
    if (it != tenants.end()) return it->second;
    bool full = static_cast<int>(tenants.size()) >= max_tenants;
    return tenants[full ? std::string("other") : std::string(name)];
  }
  Job* Live(int64_t job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    auto it = live.find(job);
    return it == live.end() ? nullptr : &it->second;
  }
  void Keep(const std::string& key, std::string request, int64_t max_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void AddSlowest(const Job& job, const ActivityOptions& options) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void List(const Job& job, v1::CompileRecord& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    out = job.record;
    out.set_has_graph(requests.contains(job.record.key()));
  }
  void FillHistory(int64_t last_slot, const std::vector<LatencyHistogram>& hits, v1::Activity& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void FillTenants(const HitCounts& hits, v1::Activity& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void FillRecords(int max_recent, int max_slowest, const ActivityOptions& options,
                   v1::Activity& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void NoteLoad(int64_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    JobSlot& now = window.At(slot);
    now.queued = std::max(now.queued, static_cast<int>(live.size()) - running);
    now.running = std::max(now.running, running);
  }

  const absl::Time started;
  absl::Mutex mu;
  absl::flat_hash_map<int64_t, Job> live ABSL_GUARDED_BY(mu);
  int running ABSL_GUARDED_BY(mu) = 0;           // of live
  std::deque<Job> recent ABSL_GUARDED_BY(mu);    // newest first
  std::vector<Job> slowest ABSL_GUARDED_BY(mu);  // slowest first
  absl::flat_hash_map<std::string, Tenant> tenants ABSL_GUARDED_BY(mu);
  SlotRing<JobSlot> window ABSL_GUARDED_BY(mu);
  int64_t misses ABSL_GUARDED_BY(mu) = 0;
  int64_t coalesced ABSL_GUARDED_BY(mu) = 0;
  int64_t compiles ABSL_GUARDED_BY(mu) = 0;
  int64_t failures ABSL_GUARDED_BY(mu) = 0;
  // Fetches that missed and whose Compile is to come.
  absl::flat_hash_map<Digest, int> fetch_misses ABSL_GUARDED_BY(mu);
  // Serialized: a parsed graph takes ten times its bytes and more.
  absl::flat_hash_map<std::string, std::shared_ptr<const std::string>> requests ABSL_GUARDED_BY(mu);
  std::deque<std::string> request_order ABSL_GUARDED_BY(mu);  // oldest first
  int64_t request_bytes ABSL_GUARDED_BY(mu) = 0;
};

void ActivityLog::State::Keep(const std::string& key, std::string request, int64_t max_bytes) {
  const auto size_bytes = static_cast<int64_t>(request.size() + kEntryBytes);
  // One graph shall not push all the others out.
  if (size_bytes > max_bytes / 4 || requests.contains(key)) return;
  requests[key] = std::make_shared<const std::string>(std::move(request));
  request_order.push_back(key);
  request_bytes += size_bytes;
  while (request_bytes > max_bytes) {
    auto oldest = requests.find(request_order.front());
    request_bytes -= static_cast<int64_t>(oldest->second->size() + kEntryBytes);
    requests.erase(oldest);
    request_order.pop_front();
  }
}

void ActivityLog::State::AddSlowest(const Job& job, const ActivityOptions& options) {
  int64_t oldest =
      job.record.finished_unix_us() - absl::ToInt64Microseconds(options.slowest_period);
  slowest.erase(
      std::remove_if(slowest.begin(), slowest.end(),
                     [&](const Job& other) { return other.record.finished_unix_us() < oldest; }),
      slowest.end());
  auto place = std::upper_bound(
      slowest.begin(), slowest.end(), job,
      [](const Job& a, const Job& b) { return DurationUs(a.record) > DurationUs(b.record); });
  slowest.insert(place, job);
  if (static_cast<int>(slowest.size()) > options.max_slowest) slowest.pop_back();
}

ActivityLog::ActivityLog(ActivityOptions options)
    : options_(std::move(options)),
      hits_(std::make_unique<HitShard[]>(kShards)),
      state_(std::make_unique<State>(options_.clock())) {}

ActivityLog::~ActivityLog() = default;

void ActivityLog::Hit(absl::string_view tenant, absl::Duration latency) {
  int64_t slot = SlotOf(options_.clock());
  HitShard& shard = hits_[ShardOfThread()];
  absl::MutexLock lock(&shard.mu);
  shard.window.At(slot).latency.Add(latency);
  ++CountOf(shard.by_tenant, tenant, options_.max_tenants);
}

void ActivityLog::FetchMissed(const Digest& key) {
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  ++s.misses;
  ++s.window.At(SlotOf(options_.clock())).misses;
  if (s.fetch_misses.size() >= kMaxFetchMisses) s.fetch_misses.clear();
  ++s.fetch_misses[key];
}

void ActivityLog::CompileMissed(const Digest& key) {
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  if (auto it = s.fetch_misses.find(key); it != s.fetch_misses.end()) {
    if (--it->second == 0) s.fetch_misses.erase(it);
    return;
  }
  ++s.misses;
  ++s.window.At(SlotOf(options_.clock())).misses;
}

void ActivityLog::JobQueued(int64_t job, const Digest& key,
                            const std::shared_ptr<const v1::CompileRequest>& request,
                            const Caller& caller) {
  absl::Time now = options_.clock();
  v1::CompileRecord record;
  record.set_number(job);
  record.set_key(key.ToHex());
  record.set_graph(Shorten(request->graph().name()));
  record.set_target(std::string(TargetName(request->device().target())));
  record.set_arch(Shorten(request->device().arch()));
  record.set_graph_nodes(request->graph().nodes_size());
  record.set_tenant(caller.tenant);
  record.set_warmup(caller.priority == Priority::kWarmup);
  record.set_queued_unix_us(absl::ToUnixMicros(now));
  record.set_waiters(1);
  if (caller.trace.valid()) record.set_trace_id(caller.trace.TraceIdHex());
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  if (static_cast<int>(s.live.size()) >= options_.max_live_jobs) return;
  // Before the new one is among them: most are queued for a moment only.
  s.NoteLoad(SlotOf(now));
  State::Job& known = s.live[job];
  if (!IsPages(record)) known.request = request;
  known.record = std::move(record);
}

void ActivityLog::JobJoined(int64_t job) {
  absl::MutexLock lock(&state_->mu);
  ++state_->coalesced;
  State::Job* known = state_->Live(job);
  if (known != nullptr) known->record.set_waiters(known->record.waiters() + 1);
}

void ActivityLog::JobRefused(absl::string_view tenant) {
  absl::MutexLock lock(&state_->mu);
  ++state_->TenantOf(tenant, options_.max_tenants).refused;
}

void ActivityLog::JobStarted(int64_t job) {
  absl::Time now = options_.clock();
  std::string key;
  std::shared_ptr<const v1::CompileRequest> request;
  {
    absl::MutexLock lock(&state_->mu);
    State::Job* known = state_->Live(job);
    if (known == nullptr || known->record.started_unix_us() != 0) return;
    known->record.set_started_unix_us(absl::ToUnixMicros(now));
    ++state_->running;
    state_->NoteLoad(SlotOf(now));
    key = known->record.key();
    request = std::move(known->request);
  }
  if (request == nullptr) return;
  // Walks the whole graph: here, where nobody waits for a lock meanwhile.
  std::string bytes = request->SerializeAsString();
  absl::MutexLock lock(&state_->mu);
  state_->Keep(key, std::move(bytes), options_.max_request_bytes);
}

void ActivityLog::StageStarted(int64_t job, absl::string_view stage) {
  absl::MutexLock lock(&state_->mu);
  if (State::Job* known = state_->Live(job)) known->record.set_stage(std::string(stage));
}

void ActivityLog::StageDone(int64_t job, absl::string_view stage, absl::Time start,
                            absl::Duration duration) {
  absl::MutexLock lock(&state_->mu);
  if (State::Job* known = state_->Live(job)) known->AddSpan(stage, start, duration);
}

void ActivityLog::KernelDone(int64_t job, absl::string_view symbol, absl::string_view operators,
                             absl::Time start, absl::Duration duration) {
  absl::MutexLock lock(&state_->mu);
  State::Job* known = state_->Live(job);
  if (known == nullptr) return;
  known->record.set_kernels_done(known->record.kernels_done() + 1);
  v1::StageSpan* span = known->AddSpan("kernel", start, duration);
  if (span == nullptr) return;
  span->set_kernel(Shorten(symbol));
  span->set_operators(Shorten(operators));
}

void ActivityLog::KernelsFound(int64_t job, int total, int cached) {
  absl::MutexLock lock(&state_->mu);
  State::Job* known = state_->Live(job);
  if (known == nullptr) return;
  known->record.set_kernels_total(total);
  known->record.set_kernels_cached(cached);
  known->record.set_kernels_done(cached);
}

void ActivityLog::JobEnded(int64_t job, const absl::Status& status, absl::string_view source) {
  absl::Time now = options_.clock();
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  auto it = s.live.find(job);
  if (it == s.live.end()) return;
  State::Job ended = std::move(it->second);
  v1::CompileRecord& record = ended.record;
  s.live.erase(it);
  if (record.started_unix_us() != 0) --s.running;
  record.set_finished_unix_us(absl::ToUnixMicros(now));
  record.set_outcome(
      status.ok() ? "OK" : Shorten(status.ToString(absl::StatusToStringMode::kWithNoExtraData)));
  record.set_source(std::string(source));
  record.clear_stage();
  if (IsPages(record)) return;
  JobSlot& slot = s.window.At(SlotOf(now));
  bool ran = record.started_unix_us() != 0;
  if (!status.ok()) {
    ++s.failures;
    ++slot.failures;
  } else if (source == "compiled") {
    ++s.compiles;
    ++s.TenantOf(record.tenant(), options_.max_tenants).compiles;
    slot.latency.Add(absl::Microseconds(DurationUs(record)));
  }
  if (ran && (!status.ok() || source == "compiled")) s.AddSlowest(ended, options_);
  s.recent.push_front(std::move(ended));
  if (static_cast<int>(s.recent.size()) > options_.max_recent) s.recent.pop_back();
}

// The hits of every slot, oldest first, and of every tenant.
void ActivityLog::MergeHits(int64_t last_slot, std::vector<LatencyHistogram>& slots,
                            absl::flat_hash_map<std::string, int64_t>& by_tenant) {
  slots.resize(kWindowSlots + 1);
  for (size_t i = 0; i < kShards; ++i) {
    HitShard& shard = hits_[i];
    absl::MutexLock lock(&shard.mu);
    for (const auto& [tenant, count] : shard.by_tenant) {
      CountOf(by_tenant, tenant, options_.max_tenants) += count;
    }
    for (int64_t n = 0; n <= kWindowSlots; ++n) {
      const HitSlot* slot = shard.window.Find(last_slot - kWindowSlots + n);
      if (slot != nullptr) slots[static_cast<size_t>(n)].Merge(slot->latency);
    }
  }
}

void ActivityLog::State::FillHistory(int64_t last_slot, const std::vector<LatencyHistogram>& hits,
                                     v1::Activity& out) {
  LatencyHistogram all_hits;
  LatencyHistogram all_compiles;
  for (int64_t n = 0; n <= kWindowSlots; ++n) {
    int64_t number = last_slot - kWindowSlots + n;
    const LatencyHistogram& slot_hits = hits[static_cast<size_t>(n)];
    v1::ActivityPoint& point = *out.add_history();
    point.set_start_unix_us(absl::ToUnixMicros(SlotStart(number)));
    point.set_hits(slot_hits.count());
    FillLatency(slot_hits, *point.mutable_hit_latency());
    all_hits.Merge(slot_hits);
    const JobSlot* jobs = window.Find(number);
    if (jobs == nullptr) continue;
    point.set_misses(jobs->misses);
    point.set_compiles(jobs->latency.count());
    point.set_failures(jobs->failures);
    point.set_jobs_queued(jobs->queued);
    point.set_jobs_running(jobs->running);
    FillLatency(jobs->latency, *point.mutable_compile_latency());
    all_compiles.Merge(jobs->latency);
  }
  FillLatency(all_hits, *out.mutable_hit_latency());
  FillLatency(all_compiles, *out.mutable_compile_latency());
}

void ActivityLog::State::FillTenants(const HitCounts& hits, v1::Activity& out) {
  std::map<std::string, v1::TenantActivity> all;
  for (const auto& [tenant, count] : hits) {
    all[tenant].set_hits(count);
    out.set_hits(out.hits() + count);
  }
  for (const auto& [tenant, counts] : tenants) {
    all[tenant].set_compiles(counts.compiles);
    all[tenant].set_refused(counts.refused);
  }
  for (const auto& [number, job] : live) {
    v1::TenantActivity& tenant = all[job.record.tenant()];
    if (job.record.started_unix_us() != 0) {
      tenant.set_running(tenant.running() + 1);
    } else {
      tenant.set_queued(tenant.queued() + 1);
    }
  }
  for (auto& [name, tenant] : all) {
    tenant.set_tenant(name);
    *out.add_tenants() = std::move(tenant);
  }
}

void ActivityLog::State::FillRecords(int max_recent, int max_slowest,
                                     const ActivityOptions& options, v1::Activity& out) {
  std::vector<const Job*> jobs;
  for (const auto& [number, job] : live) jobs.push_back(&job);
  // Running ones first, then as they came.
  std::sort(jobs.begin(), jobs.end(), [](const auto* a, const auto* b) {
    return std::make_pair(a->record.started_unix_us() == 0, a->record.number()) <
           std::make_pair(b->record.started_unix_us() == 0, b->record.number());
  });
  for (size_t i = 0; i < jobs.size() && i < static_cast<size_t>(options.max_recent); ++i) {
    List(*jobs[i], *out.add_running());
  }
  for (const Job& job : recent) {
    if (out.recent_size() < max_recent) List(job, *out.add_recent());
  }
  int64_t oldest = out.now_unix_us() - absl::ToInt64Microseconds(options.slowest_period);
  for (const Job& job : slowest) {
    if (out.slowest_size() < max_slowest && job.record.finished_unix_us() >= oldest) {
      List(job, *out.add_slowest());
    }
  }
}

void ActivityLog::Snapshot(int recent, int slowest, v1::Activity& out) {
  absl::Time now = options_.clock();
  std::vector<LatencyHistogram> hits;
  HitCounts hits_by_tenant;
  MergeHits(SlotOf(now), hits, hits_by_tenant);
  out.set_now_unix_us(absl::ToUnixMicros(now));
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  s.NoteLoad(SlotOf(now));
  out.set_started_unix_us(absl::ToUnixMicros(s.started));
  out.set_misses(s.misses);
  out.set_coalesced(s.coalesced);
  out.set_compiles(s.compiles);
  out.set_failures(s.failures);
  s.FillHistory(SlotOf(now), hits, out);
  s.FillTenants(hits_by_tenant, out);
  s.FillRecords(recent, slowest, options_, out);
}

bool ActivityLog::FindRecord(absl::string_view key_hex, v1::CompileRecord& out) {
  State& s = *state_;
  absl::MutexLock lock(&s.mu);
  const State::Job* found = nullptr;
  auto look = [&](const State::Job& job) {
    if (found == nullptr && job.record.key() == key_hex) found = &job;
  };
  for (const auto& [number, job] : s.live) look(job);
  for (const State::Job& job : s.recent) look(job);
  for (const State::Job& job : s.slowest) look(job);
  if (found == nullptr) return false;
  s.List(*found, out);
  *out.mutable_stages() = found->spans;
  return true;
}

std::shared_ptr<const v1::CompileRequest> ActivityLog::FindRequest(absl::string_view key_hex) {
  std::shared_ptr<const std::string> bytes;
  {
    absl::MutexLock lock(&state_->mu);
    auto it = state_->requests.find(key_hex);
    if (it == state_->requests.end()) return nullptr;
    bytes = it->second;
  }
  auto request = MakeArenaMessage<v1::CompileRequest>();
  return request->ParseFromString(*bytes) ? request : nullptr;
}

}  // namespace kiln::server
