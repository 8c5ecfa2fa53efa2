#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache/remote/entry_format.h"
#include "cache/remote/remote_tier.h"

namespace kiln::cache {
namespace {

// Both compare and act in one step: between two commands the lease could pass to another.
constexpr absl::string_view kRenewScript =
    "if redis.call('get', KEYS[1]) == ARGV[1] then "
    "return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
constexpr absl::string_view kReleaseScript =
    "if redis.call('get', KEYS[1]) == ARGV[1] then "
    "return redis.call('del', KEYS[1]) else return 0 end";

// Tokens of leases that nobody released are forgotten when there are this many.
constexpr size_t kMaxTokens = 4096;

std::string RandomToken() {
  unsigned char raw[16];
  if (RAND_bytes(raw, sizeof(raw)) != 1) return "";
  return absl::BytesToHexString({reinterpret_cast<const char*>(raw), sizeof(raw)});
}

std::string Milliseconds(absl::Duration ttl) {
  return absl::StrCat(std::max<int64_t>(1, absl::ToInt64Milliseconds(ttl)));
}

class RedisLeases final : public Leases {
 public:
  RedisLeases(RedisClient* client, const RemoteTierOptions& options, WriteQueue* queue)
      : client_(*client), options_(options), queue_(*queue) {}

  LeaseOutcome Acquire(const Key& key, absl::Duration ttl) override {
    if (Renew(key, ttl)) return LeaseOutcome::kHeld;
    const std::string token = RandomToken();
    if (token.empty()) return LeaseOutcome::kUnavailable;
    const std::string name = LeaseKeyName(key);
    absl::StatusOr<Reply> reply = Run(name, {"SET", name, token, "NX", "PX", Milliseconds(ttl)});
    if (!reply.ok()) return LeaseOutcome::kUnavailable;
    if (reply->type == Reply::Type::kNil) return LeaseOutcome::kBusy;
    if (reply->type != Reply::Type::kStatus) return LeaseOutcome::kUnavailable;
    Remember(key, token, ttl);
    return LeaseOutcome::kHeld;
  }

  bool Renew(const Key& key, absl::Duration ttl) override {
    const std::string token = TokenOf(key);
    if (token.empty()) return false;
    const std::string name = LeaseKeyName(key);
    absl::StatusOr<Reply> reply =
        Run(name, {"EVAL", std::string(kRenewScript), "1", name, token, Milliseconds(ttl)});
    const bool ours = reply.ok() && reply->type == Reply::Type::kInteger && reply->integer == 1;
    if (ours) {
      Remember(key, token, ttl);
    } else if (reply.ok() && reply->type == Reply::Type::kInteger) {
      Forget(key);
    }
    return ours;
  }

  void Release(const Key& key) override {
    const std::string token = TokenOf(key);
    if (token.empty()) return;
    Forget(key);
    queue_.After([this, name = LeaseKeyName(key), token] {
      // Where it fails the lease ends by its time.
      Run(name, {"EVAL", std::string(kReleaseScript), "1", name, token}).IgnoreError();
    });
  }

 private:
  struct Held {
    std::string token;
    SteadyTime until;
  };

  absl::StatusOr<Reply> Run(absl::string_view name, const std::vector<std::string>& arguments) {
    const SteadyTime start = std::chrono::steady_clock::now();
    absl::StatusOr<Reply> reply = client_.Run(name, Command(arguments.begin(), arguments.end()),
                                              ReplyLimits{}, DeadlineIn(options_.read_timeout));
    options_.observer.done("lease", reply.ok() && !reply->is_error(),
                           absl::FromChrono(std::chrono::steady_clock::now() - start));
    return reply;
  }

  // Empty where we hold none.
  std::string TokenOf(const Key& key) {
    absl::MutexLock lock(&mu_);
    auto it = held_.find(key);
    return it == held_.end() ? "" : it->second.token;
  }

  void Remember(const Key& key, const std::string& token, absl::Duration ttl) {
    absl::MutexLock lock(&mu_);
    if (held_.size() >= kMaxTokens) {
      const SteadyTime now = std::chrono::steady_clock::now();
      absl::erase_if(held_, [now](const auto& held) { return held.second.until < now; });
    }
    held_[key] = {token, DeadlineIn(ttl)};
  }

  void Forget(const Key& key) {
    absl::MutexLock lock(&mu_);
    held_.erase(key);
  }

  RedisClient& client_;
  const RemoteTierOptions options_;
  WriteQueue& queue_;
  absl::Mutex mu_;
  absl::flat_hash_map<Key, Held> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Leases> MakeRedisLeases(RedisClient* client, const RemoteTierOptions& options,
                                        WriteQueue* queue) {
  return std::make_unique<RedisLeases>(client, options, queue);
}

}  // namespace kiln::cache
