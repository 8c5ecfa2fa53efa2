// Processes that use the client library: they come, ask for programs, check what they compute, and
// go or are killed.
#include <signal.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/soak/act.h"
#include "tests/soak/answers.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

constexpr absl::Duration kLongestLife = absl::Seconds(6);
constexpr absl::Duration kEndLimit = absl::Seconds(60);

enum class End { kAsked, kKilled };

std::string SomeServers(World& world, Random& random) {
  switch (Draw(random, 0, 3)) {
    case 0:
      return world.secure_url();
    case 1:
      return world.open_url();
    case 2:
      return absl::StrCat(world.open_url(), ",", world.secure_url());
    default:
      return absl::StrCat(world.secure_url(), ",", world.open_url());
  }
}

void RunClient(World& world, Random& random, const std::vector<std::string>& more, End end) {
  std::vector<std::string> environment = world.ClientEnvironment(SomeServers(world, random));
  environment.insert(environment.end(), more.begin(), more.end());
  auto process = integration::Process::Start(
      {"/proc/self/exe", "client", "--seed", absl::StrCat(random() >> 1)}, environment);
  if (!process.ok()) return world.ledger.Breach(process.status().ToString());
  const absl::Time until = absl::Now() + DrawTime(random, absl::ZeroDuration(), kLongestLife);
  bool asked = false;
  bool over = false;
  absl::Time limit = absl::InfiniteFuture();
  while (!over) {
    if (!asked && (world.ending() || absl::Now() > until)) {
      (*process)->Signal(end == End::kKilled ? SIGKILL : SIGTERM);
      asked = true;
      limit = absl::Now() + kEndLimit;
    }
    if (auto line = (*process)->ReadLine(absl::Milliseconds(50))) {
      TakeLine(world, *line);
    } else {
      over = (*process)->Wait(absl::ZeroDuration()).has_value() || absl::Now() > limit;
    }
  }
  while (auto line = (*process)->ReadLine(absl::Milliseconds(1))) TakeLine(world, *line);
  const int code = (*process)->Wait(absl::ZeroDuration()).value_or(-1);
  // Asked in its first moments, it does not listen yet.
  const bool ended_well =
      end == End::kKilled ? code == 128 + SIGKILL : code == 0 || code == 128 + SIGTERM;
  if (!ended_well) {
    world.ledger.Breach(absl::StrCat("a client ended with ", code, " after it was ",
                                     end == End::kKilled ? "killed" : "asked to end", ": ",
                                     (*process)->Errors()));
  }
}

}  // namespace

Group Clients() {
  return {
      .acts = {{"clients that come and go",
                [](World& world, Random& random) { RunClient(world, random, {}, End::kAsked); }},
               {"clients with a cache on disk",
                [](World& world, Random& random) {
                  const std::string cache = "KILN_LOCAL_CACHE=" + world.Path("local") + ":8MiB";
                  RunClient(world, random, {cache},
                            Draw(random, 0, 1) == 0 ? End::kAsked : End::kKilled);
                }},
               {"clients killed",
                [](World& world, Random& random) { RunClient(world, random, {}, End::kKilled); }}},
      .threads = 3,
      .longest_pause = absl::Milliseconds(300)};
}

}  // namespace kiln::soak
