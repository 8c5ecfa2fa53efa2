#include "cache/lru_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  const Key a_ = ArtifactKeyOf(1), b_ = KernelKeyOf(2), c_ = ArtifactKeyOf(3);
  const Key none_ = KernelKeyOf(99);
  LruIndex index_;
};

TEST_F(LruIndexTest, ListsLeastRecentlyUsedFirst) {
  EXPECT_THAT(KeysOf(index_.List()), ElementsAre(a_, b_, c_));
  index_.Touch(a_, 7);
  EXPECT_THAT(KeysOf(index_.List()), ElementsAre(b_, c_, a_));
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
  EXPECT_THAT(KeysOf(index_.List()), ElementsAre(b_, c_, a_));
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

TEST_F(LruIndexTest, VictimsLeaveOutTheKeyToKeep) {
  EXPECT_THAT(KeysOf(index_.Victims(100, 600, a_)), ElementsAre(b_));
}

}  // namespace
}  // namespace kiln::cache
