#include "tests/soak/checks.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/http_get.h"
#include "tests/integration/server_test.h"

namespace kiln::soak {
namespace {

using integration::Eventually;

constexpr absl::Duration kProbePause = absl::Milliseconds(100);
constexpr absl::Duration kProbeLimit = absl::Seconds(2);
constexpr absl::Duration kSettleLimit = absl::Seconds(60);
constexpr absl::Duration kStableFor = absl::Seconds(2);

constexpr int kTierPool = 32;  // cache/remote/node.h

UseBounds BoundsOf(const World::Server& server, int64_t memory_bytes) {
  UseBounds bounds{.memory_bytes = memory_bytes,
                   // Its executor grows to two a processor, and timers and events take some more.
                   .grpc_threads = 2 * static_cast<int>(std::thread::hardware_concurrency()) + 4,
                   .cache_files = 1,  // the folder's lock may be held twice
                   .tier_connections = kTierPool};
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(server.data_dir, error)) {
    bounds.cache_files += entry.is_regular_file(error);
  }
  return bounds;
}

Uses Read(World& world, SteadyClient& client) {
  Uses uses;
  const int port = world.redis() == nullptr ? 0 : world.redis()->port();
  for (const World::Server& server : world.servers()) {
    uses[server.name] = ReadProcessUse(server.process->process().pid(), server.data_dir, port);
  }
  uses["steady client"] = ReadProcessUse(client.pid(), "", 0);
  return uses;
}

bool IsQuiet(const World::Server& server) {
  const integration::MetricText metrics = server.process->Metrics();
  return metrics.Sum("kiln_connections") == 0 && metrics.Sum("kiln_jobs_queued") == 0 &&
         metrics.Sum("kiln_jobs_running") == 0 && metrics.Sum("kiln_waiters") == 0 &&
         metrics.Sum("kiln_workers", {{"state", "idle"}}) == kWorkers &&
         server.process->Processes().size() == kWorkers + kStandby;
}

bool AreEqual(const Uses& a, const Uses& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.second.descriptors == y.second.descriptors && x.second.threads == y.second.threads &&
           x.second.grpc_threads == y.second.grpc_threads &&
           x.second.cache_files == y.second.cache_files &&
           x.second.memory_bytes <= y.second.memory_bytes + (int64_t{1} << 20);
  });
}

std::vector<std::string> AllExcesses(World& world, const Uses& before, const Uses& after,
                                     MemoryBounds memory) {
#if __has_feature(address_sanitizer)  // which keeps what is freed
  memory = {int64_t{1} << 30, int64_t{1} << 30};
#endif
  std::vector<std::string> found;
  const auto add = [&](const std::string& name, const UseBounds& bounds) {
    for (auto& one : Excesses(name, before.at(name), after.at(name), bounds)) found.push_back(one);
  };
  for (const World::Server& server : world.servers()) {
    add(server.name, BoundsOf(server, memory.server));
  }
  add("steady client", {.memory_bytes = memory.client});
  return found;
}

// "certificate loaded" of "2026-01-01T00:00:00Z info certificate loaded name=x".
std::string MessageOf(const std::vector<absl::string_view>& words) {
  auto end = std::find_if(words.begin() + 2, words.end(),
                          [](absl::string_view word) { return absl::StrContains(word, '='); });
  return absl::StrJoin(words.begin() + 2, end, " ");
}

}  // namespace

Prober::Prober(World& world) : world_(world), thread_([this] { Run(); }) {}

Prober::~Prober() {
  over_ = true;
  thread_.join();
}

void Prober::Run() {
  while (!over_) {
    for (const World::Server& server : world_.servers()) {
      const absl::Time start = absl::Now();
      const auto answer = integration::HttpGet(server.process->http_address(), "/healthz");
      const absl::Duration took = absl::Now() - start;
      world_.ledger.Probe(took);
      if (answer.ok() && answer->code == 200 && took <= kProbeLimit) continue;
      world_.ledger.Breach(absl::StrCat(
          "/healthz of ", server.name, ": ",
          answer.ok() ? absl::StrCat(answer->code) : answer.status().ToString(), " after ",
          absl::FormatDuration(took), "; the bound is ", absl::FormatDuration(kProbeLimit)));
    }
    absl::SleepFor(kProbePause);
  }
}

Uses Settle(World& world, SteadyClient& client) {
  client.Pause();
  for (const World::Server& server : world.servers()) {
    if (Eventually(kSettleLimit, [&] { return IsQuiet(server); })) continue;
    world.ledger.Breach(absl::StrCat(server.name, " does not become quiet within ",
                                     absl::FormatDuration(kSettleLimit)));
  }
  Uses last = Read(world, client);
  absl::Time since = absl::Now();
  Eventually(kSettleLimit, [&] {
    Uses now = Read(world, client);
    if (!AreEqual(last, now)) {
      last = std::move(now);
      since = absl::Now();
    }
    return absl::Now() - since > kStableFor;
  });
  return Read(world, client);
}

void CheckUses(World& world, SteadyClient& client, const Uses& before, const MemoryBounds& bounds) {
  std::vector<std::string> found;
  Eventually(kSettleLimit, [&] {
    found = AllExcesses(world, before, Read(world, client), bounds);
    return found.empty();
  });
  for (const std::string& sentence : found) world.ledger.Breach(sentence);
}

void EndServers(World& world) {
  for (World::Server& server : world.servers()) {
    server.process->process().Signal(SIGTERM);
    const int code = server.process->process().Wait(kSettleLimit).value_or(-1);
    if (code == 0) continue;
    world.ledger.Breach(absl::StrCat(server.name, " ended with ", code));
  }
  if (world.redis() != nullptr) world.redis()->Kill();
  // This process is whom orphans are given to.
  if (!Eventually(absl::Seconds(5), [] {
        return integration::ChildrenOf(getpid()).empty() &&
               integration::ZombiesOf(getpid()).empty();
      })) {
    world.ledger.Breach("processes stay behind: " +
                        absl::StrJoin(integration::ChildrenOf(getpid()), ", "));
  }
}

void CheckLogs(World& world) {
  for (const World::Server& server : world.servers()) {
    std::istringstream log(server.process->process().Errors());
    std::string line;
    int64_t mismatches = world.ledger.count("certificates that do not fit their key");
    while (std::getline(log, line)) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
      if (words.size() < 3) continue;
      const std::string message = MessageOf(words);
      if (words[1] == "warning") world.ledger.Count("warnings: " + message);
      if (words[1] != "error") continue;
      world.ledger.Count("errors logged: " + message);
      if (absl::StartsWith(message, "credentials not reloaded") && mismatches-- > 0) continue;
      // Killed before it was ready.
      if (message == "a worker does not start" && absl::StrContains(line, "signal 9")) continue;
      world.ledger.Breach(absl::StrCat(server.name, " logged: ", line));
    }
  }
}

}  // namespace kiln::soak
