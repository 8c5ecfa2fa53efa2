// A Redis that stands still, is killed, comes back empty, has no room.
#include "absl/strings/str_cat.h"
#include "tests/soak/act.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

void Stall(World& world, Random& random) {
  world.redis()->Stop();
  world.Rest(DrawTime(random, absl::Milliseconds(100), absl::Seconds(4)));
  world.redis()->Continue();
}

void Restart(World& world, Random& random) {
  world.redis()->Kill();
  world.Rest(DrawTime(random, absl::ZeroDuration(), absl::Seconds(2)));
  if (absl::Status status = world.redis()->StartAgain(); !status.ok()) {
    world.ledger.Breach(status.ToString());
  }
}

void Fill(World& world, Random& random) {
  world.redis()->Call({"CONFIG", "SET", "maxmemory", "1mb"});
  world.Rest(DrawTime(random, absl::ZeroDuration(), absl::Seconds(2)));
  world.redis()->Call({"CONFIG", "SET", "maxmemory", "0"});
}

// What was shared may be evicted at any time.
void Forget(World& world, Random&) {
  world.redis()->Call({"FLUSHALL"});
}

}  // namespace

Group TierFailures() {
  return {.acts = {{"Redis stalled", Stall},
                   {"Redis killed and started", Restart},
                   {"Redis full", Fill},
                   {"Redis emptied", Forget}},
          .threads = 1,
          .longest_pause = absl::Seconds(4)};
}

}  // namespace kiln::soak
