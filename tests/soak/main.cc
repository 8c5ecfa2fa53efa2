// kiln_soak: everything at once against real servers, for a time; tests/soak/README.md.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/integration/server_test.h"
#include "tests/soak/checks.h"
#include "tests/soak/client_process.h"
#include "tests/soak/stage.h"
#include "tests/soak/steady_client.h"
#include "tests/soak/world.h"

namespace kiln::soak {
namespace {

constexpr char kUsage[] =
    "kiln_soak [--seconds N] [--seed S]\n"
    "  --seconds   of disturbance, after a warm-up (3600)\n"
    "  --seed      of the order and size of things (another each time)\n";
constexpr absl::Duration kWarmUpLimit = absl::Minutes(5);
constexpr absl::Duration kReportPause = absl::Minutes(1);
// From here on it also stops in the middle.
constexpr uint64_t kLongSeconds = 600;

struct Settings {
  bool client = false;
  uint64_t seconds = 3600;
  uint64_t seed = std::random_device()();
};

bool Parse(int argc, char** argv, Settings& settings) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (i == 1 && word == "client") {
      settings.client = true;
      continue;
    }
    uint64_t* number = word == "--seconds" ? &settings.seconds
                       : word == "--seed"  ? &settings.seed
                                           : nullptr;
    if (number == nullptr || ++i == argc || !absl::SimpleAtoi(argv[i], number)) return false;
  }
  return true;
}

std::vector<Group> AllGroups(World& world) {
  std::vector<Group> groups = {Clients(),     Commands(),    SlowClients(),  Strangers(),
                               OddRequests(), WorkerKills(), Certificates(), DiskPressure()};
  if (world.redis() != nullptr) groups.push_back(TierFailures());
  return groups;
}

std::string Ms(absl::Duration duration) {
  return absl::StrCat(absl::ToDoubleMilliseconds(absl::Floor(duration, absl::Microseconds(10))));
}

load::Histogram AllHits(const Ledger& ledger) {
  load::Histogram all;
  for (const auto& [source, times] : ledger.hits()) all.Merge(times);
  return all;
}

void PrintLine(World& world, absl::Time start) {
  int64_t acts = 0;
  int64_t errors = 0;
  for (const auto& [name, count] : world.ledger.counts()) {
    if (absl::StartsWith(name, "acts: ")) acts += count;
    if (absl::StartsWith(name, "errors: ")) errors += count;
  }
  const load::Histogram hits = AllHits(world.ledger);
  std::printf(
      "%5.0f s: %lld acts, %lld right answers, %lld errors of expected kinds, hits p50 %s "
      "p99 %s ms, probes max %s ms, %zu breaches",
      absl::ToDoubleSeconds(absl::Now() - start), static_cast<long long>(acts),
      static_cast<long long>(world.ledger.count("right answers")), static_cast<long long>(errors),
      Ms(hits.Quantile(0.5)).c_str(), Ms(hits.Quantile(0.99)).c_str(),
      Ms(world.ledger.probes().max()).c_str(), world.ledger.breaches().size());
  for (const World::Server& server : world.servers()) {
    const ProcessUse use =
        ReadProcessUse(server.process->process().pid(), server.data_dir, /*tier_port=*/0);
    std::printf("; %s %d descriptors, %d threads, %lld MiB", server.name,
                use.descriptor_count() + use.cache_files, use.threads + use.grpc_threads,
                static_cast<long long>(use.memory_bytes >> 20));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void PrintUses(const char* when, const Uses& uses) {
  for (const auto& [name, use] : uses) {
    std::printf("  %-14s %-7s %s\n", name.c_str(), when, Describe(use).c_str());
  }
  std::fflush(stdout);
}

void PrintSummary(const World& world, const Uses& before, const Uses& after) {
  std::printf("\nsummary\n");
  for (const auto& [name, count] : world.ledger.counts()) {
    std::printf("  %-60s %lld\n", name.c_str(), static_cast<long long>(count));
  }
  for (const auto& [source, times] : world.ledger.hits()) {
    std::printf("  hits from %-7s p50 %s ms, p99 %s ms, max %s ms\n", source.c_str(),
                Ms(times.Quantile(0.5)).c_str(), Ms(times.Quantile(0.99)).c_str(),
                Ms(times.max()).c_str());
  }
  const load::Histogram probes = world.ledger.probes();
  std::printf("  /healthz, %lld times: p50 %s ms, p99 %s ms, max %s ms\n",
              static_cast<long long>(probes.count()), Ms(probes.Quantile(0.5)).c_str(),
              Ms(probes.Quantile(0.99)).c_str(), Ms(probes.max()).c_str());
  PrintUses("before", before);
  PrintUses("after", after);
}

void Disturb(World& world, absl::Duration time, uint64_t seed, absl::Time start) {
  Stage stage(world, AllGroups(world), seed);
  const absl::Time end = absl::Now() + time;
  for (absl::Time now = absl::Now(); now < end; now = absl::Now()) {
    absl::SleepFor(std::min(kReportPause, end - now));
    PrintLine(world, start);
  }
}

int Soak(const Settings& settings) {
  // Who outlives a server comes here, where it is seen.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto started = World::Start();
  if (!started.ok()) {
    std::printf("cannot start: %s\n", started.status().ToString().c_str());
    return 1;
  }
  World& world = **started;
  std::printf("seed %llu, %llu s; shared tier: %s; small disk: %s\n",
              static_cast<unsigned long long>(settings.seed),
              static_cast<unsigned long long>(settings.seconds),
              world.redis() != nullptr ? "redis-server" : "none, it is not installed",
              world.small_disk().empty() ? "none, this user may not mount one" : "tmpfs");
  Random random(settings.seed);
  Uses before;
  Uses after;
  {
    Prober prober(world);
    SteadyClient client(world, random() >> 1);
    const absl::Time start = absl::Now();
    {
      Stage warm_up(world, AllGroups(world), random());
      if (!integration::Eventually(kWarmUpLimit, [&] { return warm_up.Missing().empty(); })) {
        world.ledger.Breach("within five minutes nobody ended: " +
                            absl::StrJoin(warm_up.Missing(), ", "));
      }
    }
    PrintLine(world, start);
    before = Settle(world, client);
    PrintUses("before", before);
    const uint64_t parts = settings.seconds >= kLongSeconds ? 2 : 1;
    Uses middle;
    for (uint64_t part = 1; part <= parts; ++part) {
      client.Resume();
      Disturb(world, absl::Seconds(settings.seconds) / parts, random(), start);
      after = Settle(world, client);
      PrintUses("after", after);
      CheckUses(world, client, before, kBeyondTheFirst);
      if (part == 2) CheckUses(world, client, middle, kBeyondALaterOne);
      middle = after;
    }
  }
  EndServers(world);
  CheckLogs(world);
  if (world.ledger.count("right answers") == 0) world.ledger.Breach("no client got an answer");
  // Of the fixtures, which print what they expected.
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) {
    world.ledger.Breach("a fixture's expectation does not hold, see above");
  }
  PrintSummary(world, before, after);
  const std::vector<std::string> breaches = world.ledger.breaches();
  std::printf("%zu breaches, seed %llu\n", breaches.size(),
              static_cast<unsigned long long>(settings.seed));
  for (const std::string& sentence : breaches) std::printf("BREACH: %s\n", sentence.c_str());
  return breaches.empty() ? 0 : 1;
}

}  // namespace
}  // namespace kiln::soak

int main(int argc, char** argv) {
  kiln::soak::Settings settings;
  if (!kiln::soak::Parse(argc, argv, settings)) {
    std::fputs(kiln::soak::kUsage, stderr);
    return 2;
  }
  if (settings.client) return kiln::soak::RunClientProcess(settings.seed);
  ::testing::InitGoogleTest();
  return kiln::soak::Soak(settings);
}
