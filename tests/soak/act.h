// What disturbs: acts, in groups that have threads of their own.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kiln::soak {

class World;
using Random = std::mt19937_64;

struct Act {
  std::string name;
  // Takes seconds. Says to the world's ledger what it saw.
  std::function<void(World& world, Random& random)> run;
};

struct Group {
  std::vector<Act> acts;
  int threads = 1;
  absl::Duration longest_pause;  // of a thread between two acts
};

// A file each.
Group Clients();       // clients.cc: processes that come, ask, check and go, or are killed
Group Commands();      // commands.cc: the kiln command, which compares with the interpreter
Group SlowClients();   // slow.cc: those that drip, and those that do not read
Group Strangers();     // strangers.cc: silence, garbage and halves on every port
Group OddRequests();   // odd_requests.cc: graphs that are wrong, too large, or left
Group WorkerKills();   // worker_kills.cc
Group TierFailures();  // tier_failures.cc: a Redis that stalls, restarts
Group Certificates();  // certificates.cc
Group DiskPressure();  // disk_pressure.cc

// [low, high].
inline int Draw(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}
inline absl::Duration DrawTime(Random& random, absl::Duration low, absl::Duration high) {
  return low + (high - low) * std::uniform_real_distribution<>(0, 1)(random);
}

}  // namespace kiln::soak
