// The log of accesses between two barriers: exact while it is short, and never long.
#include "client/gcu_simulator/races.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace kiln::gcu_simulator {
namespace {

Tile Row(uint64_t address, int64_t extent, int64_t stride) {
  Tile tile;
  tile.space = Space::kL3;
  tile.type = ElementType::kU8;
  tile.rank = 1;
  tile.address = address;
  tile.extents[0] = extent;
  tile.strides[0] = stride;
  return tile;
}

int64_t PeakMebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// Long enough to be shortened many times, against a map of every byte.
TEST(GcuAccessLogTest, ALongLogFindsWhatAByteAtATimeFinds) {
  int with = 0;
  for (uint32_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    AccessLog log;
    struct Users {
      std::set<int> readers, writers;
    };
    std::map<uint64_t, Users> bytes;
    const int cores = 1 + static_cast<int>(seed % 4);
    for (int i = 0; i < 24; ++i) {
      // Cores work on parts of their own, and read a common one; a few stray.
      const int core = static_cast<int>(random() % static_cast<unsigned>(cores));
      const bool reads_all = random() % 3 == 0, strays = random() % 40 == 0;
      const uint64_t part = reads_all ? 100 : strays ? 0 : static_cast<uint64_t>(core);
      const bool writes = !reads_all && random() % 2 == 0;
      const int64_t stride = 2 + static_cast<int64_t>(random() % 3);
      const Tile tile = Row(part * 100'000 + random() % 1000, 8'000, stride);
      log.Add(tile, core, static_cast<uint32_t>(i), writes);
      ForEachRun(tile, [&](const kiln::gcu_simulator::Run& run) {
        Users& users = bytes[run.begin];
        (writes ? users.writers : users.readers).insert(core);
      });
    }
    const bool expected = std::any_of(bytes.begin(), bytes.end(), [](const auto& byte) {
      std::set<int> all = byte.second.readers;
      all.insert(byte.second.writers.begin(), byte.second.writers.end());
      return !byte.second.writers.empty() && all.size() > 1;
    });
    const std::optional<Conflict> found = log.FindConflict();
    ASSERT_EQ(found.has_value(), expected);
    if (found) {
      EXPECT_NE(found->a.core, found->b.core);
      EXPECT_TRUE(found->a.writes || found->b.writes);
      EXPECT_TRUE(found->a.begin < found->b.end && found->b.begin < found->a.end);
      ++with;
    }
    log.Clear();
    EXPECT_FALSE(log.FindConflict());
  }
  EXPECT_GT(with, 2);
  EXPECT_LT(with, 14);
}

TEST(GcuAccessLogTest, WhatIsAccessedAgainAndAgainTakesNoMoreMemory) {
  AccessLog log;
  log.Add(Row(1'000'000'000, 8, 1), 0, 1, true);
  const int64_t before = PeakMebibytes();
  for (uint32_t i = 0; i < 40; ++i) log.Add(Row(512, 1 << 18, 2), 1, i, false);  // 320 MiB of runs
  EXPECT_LT(PeakMebibytes() - before, 150);
  EXPECT_FALSE(log.FindConflict());
  log.Add(Row(1'000'000'004, 1, 1), 1, 7, false);
  const std::optional<Conflict> conflict = log.FindConflict();
  ASSERT_TRUE(conflict.has_value());
  EXPECT_EQ(conflict->a.instruction, 1U);
  EXPECT_EQ(conflict->b.instruction, 7U);
}

TEST(GcuAccessLogTest, ALogOfTooManyPlacesIsDroppedAndGoesOn) {
  AccessLog log;
  const int64_t before = PeakMebibytes();
  for (uint64_t i = 0; i < 16; ++i) {  // 512 MiB of runs, no two of which meet
    log.Add(Row(512 + (i << 21), 1 << 20, 2), 0, 1, true);
  }
  EXPECT_LT(PeakMebibytes() - before, 350);
  EXPECT_FALSE(log.FindConflict());
  const uint64_t elsewhere = uint64_t{1} << 40;
  log.Add(Row(elsewhere, 1, 1), 0, 1, true);
  log.Add(Row(elsewhere, 1, 1), 1, 2, true);
  EXPECT_TRUE(log.FindConflict());
}

// A conflict that was found is not lost by what comes after.
TEST(GcuAccessLogTest, AnEarlyConflictIsKept) {
  AccessLog log;
  log.Add(Row(600, 1, 1), 0, 1, true);
  log.Add(Row(600, 1, 1), 1, 2, false);
  for (uint64_t i = 0; i < 8; ++i) log.Add(Row(1024 + (i << 21), 1 << 20, 2), 0, 3, true);
  const std::optional<Conflict> conflict = log.FindConflict();
  ASSERT_TRUE(conflict.has_value());
  EXPECT_EQ(conflict->a.instruction + conflict->b.instruction, 3U);
}

}  // namespace
}  // namespace kiln::gcu_simulator
