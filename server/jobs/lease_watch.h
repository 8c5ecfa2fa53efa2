// One compile per key among servers that share a tier: keeps the leases that this server holds
// alive, and waits for the entries that others make.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/lease.h"
#include "cache/store.h"
#include "proto/base/digest.h"

namespace kiln::server {

struct LeaseWatchOptions {
  // What a holder's death costs the others, at most.
  absl::Duration ttl = absl::Seconds(3);
  // The entry of a key that another server compiles is asked for after the first, then twice as
  // long each time, up to the last.
  absl::Duration first_poll = absl::Milliseconds(20);
  absl::Duration last_poll = absl::Milliseconds(250);
  // Whoever can write to the tier can make leases, and renew them without ever compiling: after so
  // long without the entry this server compiles it itself, and for a while it waits for no other
  // lease longer than its ttl.
  absl::Duration longest_wait = absl::Minutes(1);
  absl::Duration distrust = absl::Minutes(5);
};

// Thread-safe. One thread renews and polls; `leases` and `known` may take their time limits, so
// renewals come at a third of the ttl.
class LeaseWatch {
 public:
  // How waiting for another server ended: its entry is there, or this server is to compile, as the
  // lease ran out, the tier is away or the wait took too long.
  struct Answer {
    std::optional<cache::Found> found;
    bool held = false;  // compile, with the lease; else, where nothing was found, without one
  };

  LeaseWatch(LeaseWatchOptions options, cache::Leases* leases, cache::Store* known);
  // Waits for answers under way; the others never come.
  ~LeaseWatch();

  // Tries for the lease; what is held is renewed until Release.
  cache::LeaseOutcome Acquire(const Digest& key);
  void Release(const Digest& key);

  // After kBusy: calls `done` once, on the watch's thread, unless Forget comes first. One waits for
  // a key at a time.
  void Await(const Digest& key, std::function<void(const Answer&)> done);
  void Forget(const Digest& key);

 private:
  struct Poll {
    std::function<void(const Answer&)> done;
    absl::Duration wait;
    absl::Time due;
    absl::Time until;
  };

  void RunThread();
  absl::Time NextDue() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void RenewOne(const Digest& key);
  void PollOne(const Digest& key);

  const LeaseWatchOptions options_;
  cache::Leases& leases_;
  cache::Store& known_;

  absl::Mutex mu_;
  absl::CondVar changed_;
  absl::flat_hash_map<Digest, absl::Time> held_ ABSL_GUARDED_BY(mu_);  // when to renew it
  absl::flat_hash_map<Digest, Poll> polls_ ABSL_GUARDED_BY(mu_);
  absl::Time distrust_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kiln::server
