#include "tests/soak/stage.h"

#include <algorithm>
#include <utility>

#include "tests/soak/world.h"

namespace kiln::soak {

Stage::Stage(World& world, std::vector<Group> groups, uint64_t seed)
    : world_(world), groups_(std::move(groups)) {
  world_.set_ending(false);
  for (const Group& group : groups_) {
    for (const Act& act : group.acts) ended_[act.name] = 0;
  }
  for (const Group& group : groups_) {
    for (int i = 0; i < group.threads; ++i) {
      threads_.emplace_back([this, &group, seed] { Run(group, seed); });
      seed = Random(seed)();
    }
  }
}

Stage::~Stage() {
  world_.set_ending(true);
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::string> Stage::Missing() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> names;
  for (const auto& [name, count] : ended_) {
    if (count == 0) names.push_back(name);
  }
  return names;
}

void Stage::Run(const Group& group, uint64_t seed) {
  Random random(seed);
  std::vector<const Act*> deck;
  while (!world_.ending()) {
    if (deck.empty()) {
      for (const Act& act : group.acts) deck.push_back(&act);
      std::shuffle(deck.begin(), deck.end(), random);
    }
    const Act& act = *deck.back();
    deck.pop_back();
    act.run(world_, random);
    world_.ledger.Count("acts: " + act.name);
    {
      absl::MutexLock lock(&mu_);
      ++ended_[act.name];
    }
    world_.Rest(DrawTime(random, absl::ZeroDuration(), group.longest_pause));
  }
}

}  // namespace kiln::soak
