// Measures the durable tier with many small entries: how long a start takes, what the index takes
// in memory, how long a hit takes.
//
//   storage_bench fill DIR ENTRIES      makes DIR/cache; the keys are those of `kiln load fetch
//                                       --size 200`, so that a kilnd on DIR can be loaded too
//   storage_bench measure DIR ENTRIES   opens it in this process and prints a line of JSON
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache/rocksdb_store.h"
#include "cache/verifying_store.h"

namespace kiln::cache {
namespace {

constexpr size_t kValueBytes = 200;
constexpr int kReads = 200'000;
constexpr int kWarmupReads = 100'000;

Key KeyOf(int64_t number) {
  return {EntryKind::kArtifact,
          Sha256(absl::StrCat("kiln load entry ", number, " of ", kValueBytes, " bytes"))};
}

std::string BytesOf(int64_t number) {
  std::string bytes = absl::StrCat(number, " ");
  std::mt19937_64 random(static_cast<uint64_t>(number));
  while (bytes.size() < kValueBytes) bytes += static_cast<char>(random());
  return bytes;
}

RocksDbOptions OptionsOf(const std::string& folder) {
  RocksDbOptions options;
  options.path = folder + "/cache";
  return options;
}

int64_t ResidentBytes() {
  int64_t pages = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Of this process so far, all its threads.
double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "storage_bench: %s\n", status.ToString().c_str());
  return 1;
}

// In order of their keys, so that little is rewritten while it fills.
int Fill(const std::string& folder, int64_t entries) {
  std::vector<std::pair<Digest, int64_t>> keys;
  for (int64_t i = 0; i < entries; ++i) keys.emplace_back(KeyOf(i).digest, i);
  std::sort(keys.begin(), keys.end());
  auto store = OpenRocksDbStore(OptionsOf(folder));
  if (!store.ok()) return Fail(store.status());
  for (const auto& [digest, number] : keys) {
    absl::Status put = (*store)->Put({EntryKind::kArtifact, digest}, MakeEntry(BytesOf(number)));
    if (!put.ok()) return Fail(put);
  }
  return 0;
}

int Measure(const std::string& folder, int64_t entries) {
  int64_t before_bytes = ResidentBytes();
  absl::Time begin = absl::Now();
  auto disk = OpenRocksDbStore(OptionsOf(folder));
  if (!disk.ok()) return Fail(disk.status());
  double open_s = absl::ToDoubleSeconds(absl::Now() - begin);
  double open_cpu_s = CpuSeconds();
  int64_t open_bytes = ResidentBytes() - before_bytes;
  int64_t listed = 0;
  for (const Usage& usage : (*disk)->Usages()) listed += usage.entries;
  auto store = MakeVerifyingStore(disk->get());
  std::mt19937_64 random(5);
  std::vector<double> times_us;
  int64_t misses = 0;
  for (int i = 0; i < kWarmupReads + kReads; ++i) {
    Key key = KeyOf(static_cast<int64_t>(random() % static_cast<uint64_t>(entries)));
    absl::Time start = absl::Now();
    bool hit = store->Get(key).ok();
    misses += !hit;
    if (i >= kWarmupReads) times_us.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  std::sort(times_us.begin(), times_us.end());
  std::printf(
      "{\"entries\": %lld, \"open_s\": %.3f, \"open_cpu_s\": %.3f, \"resident_after_open_mb\": "
      "%.1f, "
      "\"resident_bytes_per_entry\": %.1f, \"hit_p50_us\": %.2f, \"hit_p90_us\": %.2f, "
      "\"hit_p99_us\": %.2f, \"misses\": %lld}\n",
      static_cast<long long>(listed), open_s, open_cpu_s, static_cast<double>(open_bytes) / 1e6,
      static_cast<double>(open_bytes) / static_cast<double>(listed), times_us[kReads / 2],
      times_us[kReads * 9 / 10], times_us[kReads * 99 / 100], static_cast<long long>(misses));
  return misses == 0 && listed == entries ? 0 : 1;
}

}  // namespace
}  // namespace kiln::cache

int main(int argc, char** argv) {
  int64_t entries = 0;
  std::string action = argc == 4 ? argv[1] : "";
  if ((action != "fill" && action != "measure") || !absl::SimpleAtoi(argv[3], &entries) ||
      entries < 1) {
    std::fputs("usage: storage_bench fill|measure DIR ENTRIES\n", stderr);
    return 2;
  }
  return action == "fill" ? kiln::cache::Fill(argv[2], entries)
                          : kiln::cache::Measure(argv[2], entries);
}
