// What must hold after a disturbance, and during it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "tests/soak/process_use.h"
#include "tests/soak/steady_client.h"
#include "tests/soak/world.h"

namespace kiln::soak {

// Asks both servers' /healthz again and again from a thread of its own.
class Prober {
 public:
  explicit Prober(World& world);
  ~Prober();

 private:
  void Run();
  World& world_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

using Uses = std::map<std::string, ProcessUse>;  // by process: "secure", "open", "steady client"

// Pauses the steady client and waits until nothing changes any more: no connection, no job, every
// worker idle. A breach where that does not come about. REQUIRES: no stage.
Uses Settle(World& world, SteadyClient& client);
// What may be held beyond an earlier stop, in bytes of memory.
struct MemoryBounds {
  int64_t server = 0;
  int64_t client = 0;
};
// Beyond the first. A server keeps, each within a bound, 32 MiB of graphs for its page, 8 MiB of
// entries, 3 MiB of blocks of its cache's tables, names, records and times of what it saw
// (server/observe/activity.h); after a warm-up of seconds these are not full. 16 MiB are for what
// glibc keeps free at the ends of its two heaps (server/main.cc).
inline constexpr MemoryBounds kBeyondTheFirst = {int64_t{64} << 20, int64_t{16} << 20};
// Beyond one after minutes, when they are.
inline constexpr MemoryBounds kBeyondALaterOne = {int64_t{16} << 20, int64_t{4} << 20};

// A breach for each process that holds more than before, and still does after a minute.
void CheckUses(World& world, SteadyClient& client, const Uses& before, const MemoryBounds& bounds);

// Ends the servers; breaches for an exit code other than 0 and for processes that stay.
void EndServers(World& world);
// Breaches for lines of the level error that no act explains. Warnings are counted.
void CheckLogs(World& world);

}  // namespace kiln::soak
