// The kiln command: its checks compare with the reference interpreter, which is another path
// through the server.
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/soak/act.h"
#include "tests/soak/programs.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

using integration::Ended;

Ended Kiln(World& world, const std::string& servers, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), KILN_CLI);
  return integration::RunToEnd(arguments, world.ClientEnvironment(servers));
}

void Expect(World& world, const Ended& ended, const std::vector<std::string>& arguments) {
  if (ended.code == 0) return world.ledger.Count("commands that went well");
  // As answers.h has it: workers are killed.
  if (absl::StrContains(ended.errors, "worker crashed") ||
      absl::StrContains(ended.errors, "it is refused for")) {
    return world.ledger.Count("commands whose worker was killed");
  }
  world.ledger.Breach(absl::StrCat("kiln ", arguments[0], " ended with ", ended.code, ": ",
                                   ended.output, ended.errors));
}

void RunAndCheck(World& world, Random& random) {
  const std::string name = absl::StrCat("command-", random(), ".kgraph");
  const std::string path = world.Path(name);
  const KnownProgram known = MakeProgram(random() % 1000);
  world.WriteFile(name, known.request.graph().SerializeAsString());
  const std::string server = Draw(random, 0, 1) == 0 ? world.secure_url() : world.open_url();
  const std::vector<std::string> arguments = {"run", path, "--check"};
  Expect(world, Kiln(world, server, arguments), arguments);
  unlink(path.c_str());
}

void LookAround(World& world, Random& random) {
  const std::vector<std::vector<std::string>> commands = {
      {"status", "--json"}, {"cache", "ls"},   {"cache", "stat"},
      {"cache", "verify"},  {"top", "--once"},
  };
  const auto& arguments = commands[random() % commands.size()];
  Expect(world, Kiln(world, world.open_url(), arguments), arguments);
}

}  // namespace

Group Commands() {
  return {.acts = {{"kiln run --check", RunAndCheck}, {"kiln status, cache, top", LookAround}},
          .threads = 1,
          .longest_pause = absl::Seconds(1)};
}

}  // namespace kiln::soak
