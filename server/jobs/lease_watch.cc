#include "server/jobs/lease_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/time/clock.h"
#include "proto/base/log.h"

namespace kiln::server {
namespace {

cache::Key ArtifactKeyOf(const Digest& key) {
  return {cache::EntryKind::kArtifact, key};
}

// Servers that wait for one key do not ask in step.
absl::Duration Jitter(absl::Duration wait) {
  thread_local absl::BitGen random;
  return wait * absl::Uniform(random, 0.75, 1.25);
}

}  // namespace

LeaseWatch::LeaseWatch(LeaseWatchOptions options, cache::Leases* leases, cache::Store* known)
    : options_(options), leases_(*leases), known_(*known), thread_([this] { RunThread(); }) {}

LeaseWatch::~LeaseWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
  for (const auto& [key, due] : held_) leases_.Release(ArtifactKeyOf(key));
}

cache::LeaseOutcome LeaseWatch::Acquire(const Digest& key) {
  {
    absl::MutexLock lock(&mu_);
    // A stopped job of this server that has not let go yet is another holder like any.
    if (held_.contains(key)) return cache::LeaseOutcome::kBusy;
  }
  cache::LeaseOutcome outcome = leases_.Acquire(ArtifactKeyOf(key), options_.ttl);
  if (outcome == cache::LeaseOutcome::kHeld) {
    absl::MutexLock lock(&mu_);
    held_[key] = absl::Now() + options_.ttl / 3;
    changed_.Signal();
  }
  return outcome;
}

void LeaseWatch::Release(const Digest& key) {
  leases_.Release(ArtifactKeyOf(key));
  absl::MutexLock lock(&mu_);
  held_.erase(key);
}

void LeaseWatch::Await(const Digest& key, std::function<void(const Answer&)> done) {
  absl::MutexLock lock(&mu_);
  const absl::Time now = absl::Now();
  const absl::Duration longest = now < distrust_until_ ? options_.ttl : options_.longest_wait;
  polls_[key] = {std::move(done), options_.first_poll, now + Jitter(options_.first_poll),
                 now + std::min(longest, options_.longest_wait)};
  changed_.Signal();
}

void LeaseWatch::Forget(const Digest& key) {
  absl::MutexLock lock(&mu_);
  polls_.erase(key);
}

absl::Time LeaseWatch::NextDue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, due] : held_) next = std::min(next, due);
  for (const auto& [key, poll] : polls_) next = std::min(next, poll.due);
  return next;
}

void LeaseWatch::RunThread() {
  while (true) {
    std::vector<Digest> renewals;
    std::vector<std::pair<absl::Time, Digest>> polls;
    {
      absl::MutexLock lock(&mu_);
      for (absl::Time due = NextDue(); !stopping_ && due > absl::Now(); due = NextDue()) {
        changed_.WaitWithDeadline(&mu_, due);
      }
      if (stopping_) return;
      absl::Time now = absl::Now();
      for (const auto& [key, due] : held_) {
        if (due <= now) renewals.push_back(key);
      }
      for (const auto& [key, poll] : polls_) {
        if (poll.due <= now) polls.emplace_back(poll.due, key);
      }
    }
    for (const Digest& key : renewals) RenewOne(key);
    // A few at a time: a tier that takes its time must not hold up the renewals.
    std::sort(polls.begin(), polls.end());
    if (polls.size() > 8) polls.resize(8);
    for (const auto& [due, key] : polls) PollOne(key);
  }
}

void LeaseWatch::RenewOne(const Digest& key) {
  // The second where the tier lost it, as when it was restarted.
  bool ours = leases_.Renew(ArtifactKeyOf(key), options_.ttl) ||
              leases_.Acquire(ArtifactKeyOf(key), options_.ttl) == cache::LeaseOutcome::kHeld;
  bool released = false;
  {
    absl::MutexLock lock(&mu_);
    auto it = held_.find(key);
    released = it == held_.end();
    if (!released) it->second = ours ? absl::Now() + options_.ttl / 3 : absl::InfiniteFuture();
  }
  if (released && ours) leases_.Release(ArtifactKeyOf(key));
  if (released || ours) return;
  // The compile goes on: two that compile one key do no harm but work.
  Log(LogLevel::kWarning, "a compile's lease was lost", {{"key", key.ShortHex()}});
}

void LeaseWatch::PollOne(const Digest& key) {
  Answer answer;
  bool decided = false;
  if (auto found = known_.Get(ArtifactKeyOf(key)); found.ok()) {
    answer.found = *std::move(found);
    decided = true;
  } else {
    cache::LeaseOutcome outcome = Acquire(key);
    answer.held = outcome == cache::LeaseOutcome::kHeld;
    decided = outcome != cache::LeaseOutcome::kBusy;
  }
  std::function<void(const Answer&)> done;
  {
    absl::MutexLock lock(&mu_);
    auto it = polls_.find(key);
    if (it != polls_.end() && !decided && absl::Now() >= it->second.until) {
      decided = true;
      distrust_until_ = absl::Now() + options_.distrust;
      Log(LogLevel::kWarning, "another server's lease brought no entry for too long",
          {{"key", key.ShortHex()}});
    }
    if (it != polls_.end() && !decided) {
      it->second.wait = std::min(2 * it->second.wait, options_.last_poll);
      it->second.due = std::min(absl::Now() + Jitter(it->second.wait), it->second.until);
      return;
    }
    if (it != polls_.end()) {
      done = std::move(it->second.done);
      polls_.erase(it);
    }
  }
  if (done) return done(answer);
  if (answer.held) Release(key);  // nobody waits for it any more
}

}  // namespace kiln::server
