// kilnd is killed under write load, again and again: what it said that it stored is there, nothing
// else is, and it is back at once. KILN_KILL_ROUNDS sets how often, 20 by default;
// KILN_KILL_START_SECONDS how long a start may take, 5 by default, for machines that are busy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/integration/cache_entries.h"
#include "tests/integration/server_test.h"

namespace kiln::integration {
namespace {

constexpr int kDefaultRounds = 20;
constexpr int kWriters = 2;
constexpr int kStartSeconds = 5;
// Of a cache of 64 MiB the values stored last cannot have been evicted.
constexpr size_t kRecentBytes = 16 << 20;
constexpr int kSamples = 8;

int Setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) && number > 0 ? number : otherwise;
}

// Small ones in the database, larger ones in files, a large one now and then.
size_t SizeOf(int64_t number) {
  std::mt19937_64 random(static_cast<uint64_t>(number) * 7919);
  uint64_t sort = random() % 20;
  if (sort == 0) return 200'000 + random() % 1'500'000;
  return sort < 8 ? 100 + random() % 3'500 : 4'000 + random() % 40'000;
}

MadeEntry EntryOf(int64_t number) {
  return MakeUpEntry(number, SizeOf(number), number % 3 == 0 ? "kernel" : "artifact");
}

// Entries that are sent, and those that the server said it has.
class Ledger {
 public:
  int64_t Next() {
    absl::MutexLock lock(&mu_);
    return next_++;
  }
  void Sent(const std::string& key_hex, int64_t number) {
    absl::MutexLock lock(&mu_);
    numbers_[key_hex] = number;
  }
  void Acknowledged(const std::string& key_hex, size_t size_bytes) {
    absl::MutexLock lock(&mu_);
    ++acknowledged_;
    recent_.emplace_back(key_hex, size_bytes);
    recent_bytes_ += size_bytes;
    while (recent_bytes_ > kRecentBytes) {
      recent_bytes_ -= recent_.front().second;
      recent_.pop_front();
    }
  }
  void Refused(const grpc::Status& status) {
    absl::MutexLock lock(&mu_);
    if (refused_++ == 0) std::cerr << "first refusal: " << Text(status) << "\n";
  }
  int64_t acknowledged() {
    absl::MutexLock lock(&mu_);
    return acknowledged_;
  }
  int64_t refused() {
    absl::MutexLock lock(&mu_);
    return refused_;
  }
  std::vector<std::string> RecentKeys() {
    absl::MutexLock lock(&mu_);
    std::vector<std::string> keys;
    for (const auto& [key, size] : recent_) keys.push_back(key);
    return keys;
  }
  // Nothing for a key that was never sent.
  std::optional<int64_t> NumberOf(const std::string& key_hex) {
    absl::MutexLock lock(&mu_);
    auto it = numbers_.find(key_hex);
    if (it == numbers_.end()) return std::nullopt;
    return it->second;
  }

 private:
  absl::Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, int64_t> numbers_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<std::string, size_t>> recent_ ABSL_GUARDED_BY(mu_);
  size_t recent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// Stores entries, each in a call of its own, until the server is gone.
void WriteUntilKilled(const ServerProcess& server, Ledger& ledger) {
  auto stub = server.NewStub();
  while (true) {
    int64_t number = ledger.Next();
    MadeEntry entry = EntryOf(number);
    ledger.Sent(entry.key.ToHex(), number);
    grpc::Status status = Import(*stub, RecordsOf(entry));
    if (status.ok()) {
      ledger.Acknowledged(entry.key.ToHex(), entry.bytes.size());
    } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ledger.Refused(status);
    } else {
      return;
    }
  }
}

class KillTest : public ServerTest {
 protected:
  // What is listed, read and verified.
  void CheckCache(Ledger& ledger, std::mt19937& random, int& most_entries) {
    v1::ListCacheResponse listed = ListCache(stub());
    v1::VerifyCacheResponse verified = VerifyCache(stub());
    most_entries = std::max(most_entries, listed.entries_size());
    ASSERT_EQ(verified.corrupt(), 0);
    ASSERT_EQ(verified.checked(), listed.entries_size()) << "an entry is listed and cannot be read";
    std::map<std::string, std::string> kinds;
    for (const v1::CacheEntry& entry : listed.entries()) kinds[entry.key()] = entry.kind();
    for (const auto& [key, kind] : kinds) {
      ASSERT_TRUE(ledger.NumberOf(key).has_value()) << "nobody stored " << key;
    }
    for (const std::string& key : ledger.RecentKeys()) {
      ASSERT_TRUE(kinds.contains(key)) << "the server said that it stored " << key;
    }
    for (int i = 0; i < kSamples && listed.entries_size() > 0; ++i) {
      const v1::CacheEntry& entry =
          listed.entries(static_cast<int>(random() % static_cast<unsigned>(listed.entries_size())));
      if (entry.kind() != "artifact") continue;
      Answer answer = Fetch(stub(), entry.key());
      ASSERT_TRUE(answer.ok()) << entry.key() << ": " << Text(answer.status);
      ASSERT_TRUE(answer.bytes == EntryOf(*ledger.NumberOf(entry.key())).bytes) << entry.key();
    }
  }
};

TEST_F(KillTest, AKilledServerHasWhatItSaidItStoredAndNothingElse) {
  const int rounds = Setting("KILN_KILL_ROUNDS", kDefaultRounds);
  const absl::Duration start_limit =
      absl::Seconds(Setting("KILN_KILL_START_SECONDS", kStartSeconds));
  std::mt19937 random(20);
  Ledger ledger;
  std::vector<absl::Duration> starts;
  int most_entries = 0;
  for (int round = 0; round <= rounds; ++round) {
    absl::Time begin = absl::Now();
    ASSERT_TRUE(StartServer({"--cache-max-size=64MiB", "--cache-memory-size=1MiB", "--workers=1"}));
    absl::Duration start = absl::Now() - begin;
    starts.push_back(start);
    ASSERT_LE(start, start_limit) << "round " << round;
    ASSERT_NO_FATAL_FAILURE(CheckCache(ledger, random, most_entries)) << "round " << round;
    if (round == rounds) break;
    std::vector<std::thread> writers;
    for (int i = 0; i < kWriters; ++i) {
      writers.emplace_back([&] { WriteUntilKilled(server(), ledger); });
    }
    absl::SleepFor(absl::Milliseconds(20 + random() % 200));
    server().Kill();
    for (std::thread& writer : writers) writer.join();
  }
  std::sort(starts.begin(), starts.end());
  std::cout << rounds << " kills, " << ledger.acknowledged() << " entries acknowledged, "
            << ledger.refused() << " refused, at most " << most_entries << " at once; starts took "
            << starts[starts.size() / 2] << " at the median and " << starts.back() << " at most\n";
  EXPECT_GE(ledger.acknowledged(), rounds);
  EXPECT_EQ(ledger.refused(), 0);
}

}  // namespace
}  // namespace kiln::integration
