// Workers and their tasks that are killed, or stand still for a while.
#include <signal.h>

#include "tests/soak/act.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

// A worker, or a process for a task; 0 where there is none at the moment.
pid_t AnyChild(World& world, Random& random) {
  const auto pids = world.servers()[random() % world.servers().size()].process->Processes();
  return pids.empty() ? 0 : pids[random() % pids.size()];
}

void Kill(World& world, Random& random) {
  const pid_t pid = AnyChild(world, random);
  if (pid > 0 && kill(pid, SIGKILL) == 0) world.ledger.Count("workers and tasks killed");
}

void Stall(World& world, Random& random) {
  const pid_t pid = AnyChild(world, random);
  if (pid <= 0 || kill(pid, SIGSTOP) != 0) return;
  world.Rest(DrawTime(random, absl::ZeroDuration(), absl::Seconds(1)));
  kill(pid, SIGCONT);
}

}  // namespace

Group WorkerKills() {
  return {.acts = {{"workers killed", Kill}, {"workers stalled", Stall}},
          .threads = 1,
          .longest_pause = absl::Seconds(3)};
}

}  // namespace kiln::soak
