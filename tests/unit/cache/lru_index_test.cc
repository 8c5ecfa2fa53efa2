#include "cache/lru_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "tests/unit/cache/entries.h"

namespace kiln::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Key> KeysOf(const std::vector<EntryInfo>& infos) {
  std::vector<Key> keys;
  for (const EntryInfo& info : infos) keys.push_back(info.key);
  return keys;
}

class LruIndexTest : public ::testing::Test {
 protected:
  LruIndexTest() {
    index_.Insert({a_, 100, 1});
    index_.Insert({b_, 200, 2});
    index_.Insert({c_, 300, 3});
  }
  std::vector<EntryInfo> List() {
    std::vector<EntryInfo> infos;
    index_.VisitOldest([&](const EntryInfo& info) {
      infos.push_back(info);
      return true;
    });
    return infos;
  }
  absl::Mutex mu_;
  const Key a_ = ArtifactKeyOf(1), b_ = KernelKeyOf(2), c_ = ArtifactKeyOf(3);
  const Key none_ = KernelKeyOf(99);
  LruIndex index_;
};

TEST_F(LruIndexTest, ListsLeastRecentlyUsedFirst) {
  EXPECT_THAT(KeysOf(List()), ElementsAre(a_, b_, c_));
  index_.Touch(a_, 7);
  EXPECT_THAT(KeysOf(List()), ElementsAre(b_, c_, a_));
  EXPECT_EQ(index_.Find(a_)->last_used_unix_ms, 7);
}

TEST_F(LruIndexTest, TouchingAnAbsentKeyAddsNothing) {
  index_.Touch(none_, 7);
  EXPECT_FALSE(index_.Contains(none_));
  EXPECT_EQ(index_.size_bytes(), 600);
}

TEST_F(LruIndexTest, CountsKindsApart) {
  EXPECT_EQ(index_.size_bytes(EntryKind::kArtifact), 400);
  EXPECT_EQ(index_.entries(EntryKind::kArtifact), 2);
  EXPECT_EQ(index_.size_bytes(EntryKind::kKernel), 200);
  EXPECT_EQ(index_.entries(EntryKind::kKernel), 1);
}

TEST_F(LruIndexTest, ReplacingAnEntryCountsItOnce) {
  index_.Insert({a_, 50, 9});
  EXPECT_EQ(index_.size_bytes(), 550);
  EXPECT_EQ(index_.entries(EntryKind::kArtifact), 2);
  EXPECT_THAT(KeysOf(List()), ElementsAre(b_, c_, a_));
}

TEST_F(LruIndexTest, EraseReturnsWhetherItWasThere) {
  EXPECT_TRUE(index_.Erase(b_));
  EXPECT_FALSE(index_.Erase(b_));
  EXPECT_EQ(index_.size_bytes(), 400);
}

TEST_F(LruIndexTest, VictimsAreJustEnoughFromTheOldEnd) {
  EXPECT_THAT(index_.Victims(0, 600, none_), IsEmpty());
  EXPECT_THAT(KeysOf(index_.Victims(1, 600, none_)), ElementsAre(a_));
  EXPECT_THAT(KeysOf(index_.Victims(101, 600, none_)), ElementsAre(a_, b_));
  EXPECT_THAT(KeysOf(index_.Victims(600, 600, none_)), ElementsAre(a_, b_, c_));
}

TEST_F(LruIndexTest, PinnedEntriesAreNoVictims) {
  index_.SetPinned(a_, true);
  EXPECT_THAT(KeysOf(List()), ElementsAre(b_, c_));
  EXPECT_TRUE(index_.Find(a_)->pinned);
  EXPECT_EQ(index_.pinned_bytes(), 100);
  EXPECT_THAT(KeysOf(index_.Victims(600, 600, none_)), ElementsAre(b_, c_));
  index_.Touch(b_, 9);
  EXPECT_THAT(KeysOf(List()), ElementsAre(c_, b_));
  index_.SetPinned(a_, false);
  EXPECT_EQ(index_.pinned_bytes(), 0);
  EXPECT_THAT(KeysOf(List()), ElementsAre(c_, b_, a_));
  index_.SetPinned(b_, true);
  EXPECT_TRUE(index_.Erase(b_));
  EXPECT_EQ(index_.pinned_bytes(), 0);
  index_.SetPinned(none_, true);
  EXPECT_FALSE(index_.Contains(none_));
}

TEST_F(LruIndexTest, CountsWhatIsInFilesOfItsOwn) {
  EntryInfo info{KernelKeyOf(5), 4096, 5};
  info.own_file = true;
  index_.Insert(info);
  EXPECT_EQ(index_.file_bytes(), 4096);
  EXPECT_TRUE(index_.Find(info.key)->own_file);
  index_.Erase(info.key);
  EXPECT_EQ(index_.file_bytes(), 0);
}

TEST_F(LruIndexTest, SortsByTimeOfLastUse) {
  index_.Insert({KernelKeyOf(7), 10, 2});
  index_.Insert({KernelKeyOf(8), 10, 0});
  index_.SortByLastUse();
  EXPECT_THAT(KeysOf(List()), ElementsAre(KernelKeyOf(8), a_, b_, KernelKeyOf(7), c_));
}

TEST_F(LruIndexTest, ManyEntriesComeAndGoAndAMoveKeepsThem) {
  std::mt19937 random(3);
  std::map<int, int64_t> model;  // number, size
  for (int step = 0; step < 60'000; ++step) {
    int number = static_cast<int>(random() % 20'000);
    if (random() % 3 == 0) {
      EXPECT_EQ(index_.Erase(KernelKeyOf(-number - 1)), model.erase(number) == 1);
    } else {
      model[number] = static_cast<int64_t>(random() % 1000);
      index_.Insert({KernelKeyOf(-number - 1), model[number], step});
    }
  }
  LruIndex moved = std::move(index_);
  int64_t bytes = 600;
  for (const auto& [number, size] : model) {
    auto info = moved.Find(KernelKeyOf(-number - 1));
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->size_bytes, size);
    bytes += size;
  }
  EXPECT_EQ(moved.size_bytes(), bytes);
  int64_t last_used = 0;
  moved.VisitOldest([&](const EntryInfo& info) {
    EXPECT_GE(info.last_used_unix_ms, last_used);
    last_used = info.last_used_unix_ms;
    return true;
  });
  absl::flat_hash_set<Key> visited;
  VisitEntries(mu_, moved, [&](const EntryInfo& info) {
    EXPECT_TRUE(visited.insert(info.key).second) << "twice";
  });
  EXPECT_EQ(visited.size(), model.size() + 3);
}

TEST_F(LruIndexTest, AWalkHoldsNoLockAndMissesNothingThatIsUsedMeanwhile) {
  constexpr int kEntries = 2000;
  for (int i = 0; i < kEntries; ++i) index_.Insert({KernelKeyOf(100 + i), 10, i});
  std::map<Digest, int> visits;
  VisitEntries(mu_, index_, [&](const EntryInfo& info) {
    ++visits[info.key.digest];
    absl::MutexLock lock(&mu_);
    const auto turn = static_cast<int>(visits.size());
    index_.Touch(KernelKeyOf(100 + turn * 7 % kEntries), 10'000 + turn);
    if (turn == kEntries / 2) {
      for (int i = 0; i < 500; ++i) index_.Insert({KernelKeyOf(10'000 + i), 10, 20'000});
    }
  });
  for (int i = 0; i < kEntries; ++i) {
    EXPECT_EQ(visits[KernelKeyOf(100 + i).digest], 1) << i;
  }
}

TEST_F(LruIndexTest, VictimsLeaveOutTheKeyToKeep) {
  EXPECT_THAT(KeysOf(index_.Victims(100, 600, a_)), ElementsAre(b_));
}

}  // namespace
}  // namespace kiln::cache
