// Leases of a tier that is a map: what several servers of a test share.
#pragma once

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cache/lease.h"

namespace kiln::server {

class FakeLeaseTier {
 public:
  struct Lease {
    const void* holder = nullptr;
    absl::Time until;
  };
  absl::Mutex mu;
  std::map<Digest, Lease> leases ABSL_GUARDED_BY(mu);
  int renewals ABSL_GUARDED_BY(mu) = 0;
  int acquisitions ABSL_GUARDED_BY(mu) = 0;
  bool reachable ABSL_GUARDED_BY(mu) = true;
};

// One server's.
class FakeLeases final : public cache::Leases {
 public:
  explicit FakeLeases(FakeLeaseTier* tier) : tier_(*tier) {}

  cache::LeaseOutcome Acquire(const cache::Key& key, absl::Duration ttl) override {
    absl::MutexLock lock(&tier_.mu);
    if (!tier_.reachable) return cache::LeaseOutcome::kUnavailable;
    FakeLeaseTier::Lease& lease = tier_.leases[key.digest];
    if (lease.holder != nullptr && lease.until > absl::Now()) return cache::LeaseOutcome::kBusy;
    lease = {this, absl::Now() + ttl};
    ++tier_.acquisitions;
    return cache::LeaseOutcome::kHeld;
  }
  bool Renew(const cache::Key& key, absl::Duration ttl) override {
    absl::MutexLock lock(&tier_.mu);
    if (!tier_.reachable) return false;
    FakeLeaseTier::Lease& lease = tier_.leases[key.digest];
    if (lease.holder != this || lease.until <= absl::Now()) return false;
    lease.until = absl::Now() + ttl;
    ++tier_.renewals;
    return true;
  }
  void Release(const cache::Key& key) override {
    absl::MutexLock lock(&tier_.mu);
    auto it = tier_.leases.find(key.digest);
    if (it != tier_.leases.end() && it->second.holder == this) tier_.leases.erase(it);
  }

 private:
  FakeLeaseTier& tier_;
};

}  // namespace kiln::server
