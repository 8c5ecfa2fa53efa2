#include "cache/remote/redis_client.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/remote/slots.h"
#include "proto/base/log.h"
#include "proto/base/status_macros.h"

namespace kiln::cache {
namespace {

constexpr int kMaxRedirections = 5;
// Redis Cluster is made for up to a thousand; a server that invents nodes gets no further.
constexpr size_t kMaxNodes = 1024;

struct Member {
  Endpoint endpoint;
  std::shared_ptr<Node> node;
};
using MemberPtr = std::shared_ptr<const Member>;

class ClusterClient final : public RedisClient {
 public:
  explicit ClusterClient(const RedisClientOptions& options) : options_(options) {
    {
      absl::MutexLock lock(&mu_);
      for (const Endpoint& seed : options_.seeds) MemberAt(seed);
    }
    refresher_ = std::thread([this] { RunRefresher(); });
  }

  ~ClusterClient() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    refresher_.join();
  }

  absl::StatusOr<Reply> Run(absl::string_view key, const Command& command,
                            const ReplyLimits& limits, SteadyTime deadline) override {
    Errand errand(key, command);
    RunErrands(absl::MakeSpan(&errand, 1), limits, deadline);
    return std::move(errand.reply);
  }

  std::vector<absl::StatusOr<Reply>> RunEach(absl::Span<const Command> commands,
                                             const ReplyLimits& limits,
                                             SteadyTime deadline) override {
    std::vector<Errand> errands;
    errands.reserve(commands.size());
    for (const Command& command : commands) errands.emplace_back(command[1], command);
    RunErrands(absl::MakeSpan(errands), limits, deadline);
    std::vector<absl::StatusOr<Reply>> replies;
    replies.reserve(errands.size());
    for (Errand& errand : errands) replies.push_back(std::move(errand.reply));
    return replies;
  }

  NodeCounts Nodes() override {
    NodeCounts counts;
    absl::MutexLock lock(&mu_);
    for (const auto& [endpoint, member] : members_) {
      switch (member->node->breaker()) {
        case BreakerState::kClosed:
          ++counts.closed;
          break;
        case BreakerState::kHalfOpen:
          ++counts.half_open;
          break;
        case BreakerState::kOpen:
          ++counts.open;
          break;
      }
    }
    return counts;
  }

 private:
  // A command on its way to whoever has its key.
  struct Errand {
    Errand(absl::string_view key, const Command& run) : command(run), slot(KeySlot(key)) {}
    const Command& command;
    const int slot;
    MemberPtr member;  // who is asked next; null once that is over
    bool ask = false;
    absl::StatusOr<Reply> reply = absl::UnavailableError(
        absl::StrCat("the cluster redirects more than ", kMaxRedirections, " times"));
  };

  void RunErrands(absl::Span<Errand> errands, const ReplyLimits& limits, SteadyTime deadline) {
    for (Errand& errand : errands) errand.member = MemberOf(errand.slot);
    for (int i = 0; i <= kMaxRedirections; ++i) {
      std::map<MemberPtr, std::vector<Errand*>> by_member;
      for (Errand& errand : errands) {
        if (errand.member != nullptr) by_member[errand.member].push_back(&errand);
      }
      if (by_member.empty()) return;
      for (const auto& [member, together] : by_member) {
        RunOn(*member, together, limits, std::max(deadline, DeadlineIn(limits.time_per_reply)));
      }
    }
  }

  void RunOn(const Member& member, const std::vector<Errand*>& errands, const ReplyLimits& limits,
             SteadyTime deadline) {
    std::vector<Command> commands;
    for (const Errand* errand : errands) {
      if (errand->ask) commands.push_back({"ASKING"});
      commands.push_back(errand->command);
    }
    absl::StatusOr<std::vector<Reply>> replies = member.node->Exchange(commands, limits, deadline);
    if (replies.ok() && replies->size() != commands.size()) {
      replies = absl::InternalError("a reply is missing");
    }
    if (!replies.ok()) NodeFailed(member);
    size_t next = 0;
    for (Errand* errand : errands) {
      if (!replies.ok()) {
        errand->reply = replies.status();
        errand->member = nullptr;
        continue;
      }
      if (errand->ask) ++next;
      Take(*errand, member, std::move((*replies)[next++]));
    }
  }

  // The answer, or the way to it.
  void Take(Errand& errand, const Member& member, Reply reply) {
    errand.member = nullptr;
    std::optional<Redirection> redirection;
    if (reply.is_error()) redirection = ParseRedirection(reply.text, member.endpoint);
    if (!redirection) {
      // A node that failed takes its slots down until another is promoted.
      if (reply.is_error() && absl::StartsWith(reply.text, "CLUSTERDOWN")) RequestRefresh();
      errand.reply = std::move(reply);
      return;
    }
    absl::StatusOr<MemberPtr> next = Follow(*redirection, errand.slot);
    if (!next.ok()) {
      errand.reply = next.status();
      return;
    }
    errand.ask = redirection->ask;
    errand.member = *std::move(next);
  }

  MemberPtr MemberOf(int slot) {
    absl::MutexLock lock(&mu_);
    if (!slots_.empty() && slots_[static_cast<size_t>(slot)] != nullptr) {
      return slots_[static_cast<size_t>(slot)];
    }
    return MemberAt(options_.seeds[seed_]);
  }

  // Known from now on.
  MemberPtr MemberAt(const Endpoint& endpoint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MemberPtr& member = members_[endpoint];
    if (member == nullptr) {
      member = std::make_shared<Member>(Member{endpoint, options_.make_node(endpoint)});
    }
    return member;
  }

  absl::StatusOr<MemberPtr> Follow(const Redirection& redirection, int slot) {
    absl::MutexLock lock(&mu_);
    refresh_wanted_ = true;
    if (!members_.contains(redirection.endpoint) && members_.size() >= kMaxNodes) {
      return absl::UnavailableError(
          absl::StrCat("the cluster names more than ", kMaxNodes, " nodes"));
    }
    MemberPtr member = MemberAt(redirection.endpoint);
    if (!redirection.ask) {
      if (slots_.empty()) slots_.resize(kSlots);
      slots_[static_cast<size_t>(slot)] = member;
    }
    return member;
  }

  void RequestRefresh() {
    absl::MutexLock lock(&mu_);
    refresh_wanted_ = true;
  }

  void NodeFailed(const Member& member) {
    absl::MutexLock lock(&mu_);
    if (!slots_.empty()) {
      refresh_wanted_ = true;
    } else if (member.endpoint == options_.seeds[seed_]) {
      seed_ = (seed_ + 1) % options_.seeds.size();
    }
  }

  void RunRefresher() {
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        auto wanted = [this] {
          mu_.AssertReaderHeld();
          return refresh_wanted_ || stopping_;
        };
        mu_.Await(absl::Condition(&wanted));
        if (stopping_) return;
        refresh_wanted_ = false;
      }
      Refresh();
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(&stopping_), options_.min_refresh_interval);
    }
  }

  // Asks one member after another until one tells.
  void Refresh() {
    absl::Status last = absl::UnavailableError("no node");
    for (const MemberPtr& member : Candidates()) {
      absl::StatusOr<std::vector<Reply>> replies = member->node->Exchange(
          {{"CLUSTER", "SLOTS"}}, kSlotsReplyLimits, DeadlineIn(options_.slots_timeout));
      if (!replies.ok()) {
        last = replies.status();
        continue;
      }
      absl::StatusOr<std::vector<SlotRange>> ranges =
          SlotRangesOf(replies->back(), member->endpoint);
      if (ranges.ok() && ranges->empty()) ranges = absl::DataLossError("a cluster without slots");
      if (ranges.ok() || absl::IsUnimplemented(ranges.status())) {
        return Adopt(ranges.ok() ? *ranges : std::vector<SlotRange>());
      }
      last = ranges.status();
    }
    Log(LogLevel::kDebug, "nobody tells the slots of the shared tier",
        {{"why", std::string(last.message())}});
  }

  std::vector<MemberPtr> Candidates() {
    absl::MutexLock lock(&mu_);
    std::vector<MemberPtr> candidates;
    for (const auto& [endpoint, member] : members_) {
      if (member->node->breaker() == BreakerState::kClosed) candidates.push_back(member);
    }
    for (const Endpoint& seed : options_.seeds) candidates.push_back(MemberAt(seed));
    return candidates;
  }

  // `ranges` are all that is known from now on; none where this is no cluster.
  void Adopt(const std::vector<SlotRange>& ranges) {
    absl::MutexLock lock(&mu_);
    slots_.clear();
    if (!ranges.empty()) slots_.resize(kSlots);
    absl::flat_hash_set<Endpoint> used(options_.seeds.begin(), options_.seeds.end());
    for (const SlotRange& range : ranges) {
      if (used.size() >= kMaxNodes && !used.contains(range.owner)) continue;
      used.insert(range.owner);
      MemberPtr owner = MemberAt(range.owner);
      for (int slot = range.first; slot <= range.last; ++slot) {
        slots_[static_cast<size_t>(slot)] = owner;
      }
    }
    absl::erase_if(members_, [&](const auto& known) { return !used.contains(known.first); });
  }

  const RedisClientOptions options_;
  absl::Mutex mu_;
  absl::flat_hash_map<Endpoint, MemberPtr> members_ ABSL_GUARDED_BY(mu_);
  // By slot; null where nobody is known to own it; empty where this is no cluster as far as known.
  std::vector<MemberPtr> slots_ ABSL_GUARDED_BY(mu_);
  size_t seed_ ABSL_GUARDED_BY(mu_) = 0;
  bool refresh_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread refresher_;
};

}  // namespace

std::unique_ptr<RedisClient> MakeRedisClient(const RedisClientOptions& options) {
  return std::make_unique<ClusterClient>(options);
}

}  // namespace kiln::cache
