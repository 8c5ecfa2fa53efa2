// A time of disturbance: every group's threads run its acts, one after the other in random order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/soak/act.h"

namespace kiln::soak {

class Stage {
 public:
  // Starts. `world` must outlive it.
  Stage(World& world, std::vector<Group> groups, uint64_t seed);
  // Has every act come to its end.
  ~Stage();

  // The acts that no thread has ended yet.
  std::vector<std::string> Missing() const;

 private:
  void Run(const Group& group, uint64_t seed);

  World& world_;
  const std::vector<Group> groups_;
  mutable absl::Mutex mu_;
  std::map<std::string, int> ended_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace kiln::soak
