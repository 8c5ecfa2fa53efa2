// A client process that stays from the beginning to the end: what it holds is compared, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "tests/integration/process.h"
#include "tests/soak/world.h"

namespace kiln::soak {

class SteadyClient {
 public:
  SteadyClient(World& world, uint64_t seed);
  // Has it end; a breach where it does not end well.
  ~SteadyClient();

  // Returns once it holds no connection; a breach where it does not say so within a minute.
  void Pause();
  void Resume();
  pid_t pid() const { return process_->pid(); }

 private:
  World& world_;
  std::unique_ptr<integration::Process> process_;
  std::atomic<bool> paused_ = false;
  std::atomic<bool> over_ = false;
  std::thread reader_;
};

}  // namespace kiln::soak
