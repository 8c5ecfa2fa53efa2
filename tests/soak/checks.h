// What must hold after a disturbance, and during it.
#pragma once

#include <atomic>
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
// As Settle, and waits for as long as any process holds more than before; then each excess is a
// breach.
Uses SettleWithin(World& world, SteadyClient& client, const Uses& before);

// Ends the servers; breaches for an exit code other than 0 and for processes that stay.
void EndServers(World& world);
// Breaches for lines of the level error that no act explains. Warnings are counted.
void CheckLogs(World& world);

}  // namespace kiln::soak
