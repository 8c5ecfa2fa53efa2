#include "cache/tiered_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "cache/memory_store.h"
#include "cache/rocksdb_store.h"
#include "cache/verifying_store.h"
#include "tests/temp_dir.h"
#include "tests/unit/cache/entries.h"
#include "tests/unit/cache/fake_store.h"

namespace kiln::cache {
namespace {

using ::testing::UnorderedElementsAre;

class TieredStoreTest : public ::testing::Test {
 protected:
  FakeStore upper_, lower_;
  std::unique_ptr<Store> store_ = MakeTieredStore(&upper_, &lower_);
};

TEST_F(TieredStoreTest, WritesGoToBoth) {
  ASSERT_TRUE(store_->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  EXPECT_EQ(upper_.entries.size(), 1u);
  EXPECT_EQ(lower_.entries.size(), 1u);
}

TEST_F(TieredStoreTest, AHitAboveDoesNotAskBelow) {
  ASSERT_TRUE(store_->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  ASSERT_TRUE(store_->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(lower_.gets, 0);
}

TEST_F(TieredStoreTest, AHitBelowIsPromoted) {
  ASSERT_TRUE(lower_.Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  ASSERT_TRUE(store_->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(upper_.entries.size(), 1u);
  ASSERT_TRUE(store_->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(lower_.gets, 1);
}

TEST_F(TieredStoreTest, WhatTheUpperTierCannotHoldIsServedFromBelow) {
  ASSERT_TRUE(lower_.Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  upper_.put_error = absl::ResourceExhaustedError("too large");
  auto found = store_->Get(ArtifactKeyOf(1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->entry->bytes, "a");
}

TEST_F(TieredStoreTest, ManyAreAskedForBelowAtOnceAndOnlyThoseThatAreNotAbove) {
  for (int i : {1, 2}) ASSERT_TRUE(upper_.Put(ArtifactKeyOf(i), MakeEntry("above")).ok());
  for (int i : {3, 4}) ASSERT_TRUE(lower_.Put(ArtifactKeyOf(i), MakeEntry("below")).ok());
  const std::vector<Key> keys = {ArtifactKeyOf(3), ArtifactKeyOf(1), ArtifactKeyOf(5),
                                 ArtifactKeyOf(4), ArtifactKeyOf(2)};
  auto found = store_->GetMany(keys);
  ASSERT_EQ(found.size(), keys.size());
  for (size_t i : {0, 3}) EXPECT_EQ(found[i].value().entry->bytes, "below");
  for (size_t i : {1, 4}) EXPECT_EQ(found[i].value().entry->bytes, "above");
  EXPECT_TRUE(absl::IsNotFound(found[2].status()));
  EXPECT_EQ(lower_.batches, 1);
  EXPECT_EQ(lower_.gets, 3);
  EXPECT_EQ(upper_.entries.size(), 4u) << "what was below is kept above";
  found = store_->GetMany({keys[0], keys[1]});
  EXPECT_TRUE(found[0].ok() && found[1].ok());
  EXPECT_EQ(lower_.batches, 1) << "nothing is missing above";
}

TEST_F(TieredStoreTest, AFailingTierIsAMiss) {
  ASSERT_TRUE(store_->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  lower_.get_error = absl::UnavailableError("disk gone");
  EXPECT_TRUE(store_->Get(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(store_->Get(ArtifactKeyOf(2)).status().code(), absl::StatusCode::kNotFound);
  lower_.get_error = absl::OkStatus();
  upper_.get_error = absl::UnavailableError("broken");
  EXPECT_TRUE(store_->Get(ArtifactKeyOf(1)).ok());
}

TEST_F(TieredStoreTest, AWriteSucceedsWhereEitherTierTookIt) {
  upper_.put_error = absl::ResourceExhaustedError("too large");
  EXPECT_TRUE(store_->Put(ArtifactKeyOf(1), MakeEntry("a")).ok());
  lower_.put_error = absl::UnavailableError("disk gone");
  EXPECT_FALSE(store_->Put(ArtifactKeyOf(2), MakeEntry("a")).ok());
  upper_.put_error = absl::OkStatus();
  EXPECT_TRUE(store_->Put(ArtifactKeyOf(3), MakeEntry("a")).ok());
}

TEST_F(TieredStoreTest, ListsEachEntryOnceAndRemovesItFromBoth) {
  ASSERT_TRUE(store_->Put(ArtifactKeyOf(1), MakeEntry("both")).ok());
  ASSERT_TRUE(upper_.Put(ArtifactKeyOf(2), MakeEntry("above")).ok());
  ASSERT_TRUE(lower_.Put(KernelKeyOf(3), MakeEntry("below")).ok());
  EXPECT_THAT(Keys(*store_),
              UnorderedElementsAre(ArtifactKeyOf(1), ArtifactKeyOf(2), KernelKeyOf(3)));
  ASSERT_TRUE(store_->Remove(ArtifactKeyOf(1)).ok());
  EXPECT_EQ(upper_.entries.size(), 1u);
  EXPECT_EQ(lower_.entries.size(), 1u);
}

// The stack of the server, small, under threads: every value read is the right one.
TEST(TieredStackTest, ThreadsReadOnlyRightValuesWhileBothTiersEvict) {
  TempDir dir;
  RocksDbOptions options;
  options.path = dir.path() + "/cache";
  options.max_bytes = kLeastCacheBytes;
  auto disk = OpenRocksDbStore(options);
  ASSERT_TRUE(disk.ok()) << disk.status();
  auto verifying = MakeVerifyingStore(disk->get());
  auto memory = MakeMemoryStore(3'000'000);
  auto store = MakeTieredStore(memory.get(), verifying.get());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 300; ++i) {
        int number = static_cast<int>(random() % 60);
        Key key = KernelKeyOf(number);
        if (random() % 3 == 0) {
          ASSERT_TRUE(store->Put(key, MakeEntry(BytesOf(number, 700'000))).ok());
        } else if (auto found = store->Get(key); found.ok()) {
          ASSERT_EQ(found->entry->bytes, BytesOf(number, 700'000));
        } else {
          ASSERT_EQ(found.status().code(), absl::StatusCode::kNotFound) << found.status();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(SizeBytes(*memory), 3'000'000);
  EXPECT_LE(SizeBytes(**disk), EntryBudgetBytes(kLeastCacheBytes));
  EXPECT_LT(Entries(**disk), 60) << "nothing was evicted";
  EXPECT_EQ(VerifyAll(*store).corrupt, 0);
}

}  // namespace
}  // namespace kiln::cache
